"""One run's folder and its records, from the first line to the last."""

from __future__ import annotations

import contextlib
import platform
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rig.config import RunConfig
from rig.errors import UsageError
from rig.plan import Plan
from rig.records import FILE, SCHEMA, Record, RecordLog, record_id
from rig.seats import Seat


class Journal:
    """Writes the driver's own records and appends everybody else's; `UsageError` if the folder is in use."""

    def __init__(
        self,
        config: RunConfig,
        *,
        folder: tuple[Path, list[Path]],
        about: Mapping[str, Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder, self._made = folder
        self.run = f"{config.name}-{uuid.uuid4().hex[:12]}"
        self._config, self._about, self._clock = config, dict(about), clock
        self._started = clock()
        self._start = _now()
        self._seq = 0
        self._has_begun = False
        try:
            self._log = RecordLog(self.folder / FILE)
        except OSError as error:
            raise UsageError(f"{self.folder}: cannot write there ({error.strerror}); give another --out DIR") from None

    @property
    def records(self) -> list[Record]:
        """Everything recorded so far."""
        return self._log.records

    def begin(
        self, *, seats: Sequence[Seat], plan: Plan, expect: Mapping[str, int], found: Mapping[str, int], transport: str
    ) -> None:
        """The run record: everything that is known before anything runs."""
        self._has_begun = True
        config = self._config.model_dump(mode="json")
        head = {"schema": SCHEMA, "run": self.run, "name": self._config.name, "seed": self._config.seed}
        known = {
            "expect": dict(expect),
            "found": dict(found),
            "transport": transport,
            "controls": self._config.controls,
        }
        planned = {"seats": [asdict(seat) for seat in seats], "plan": plan.dicts(), "skipped": list(plan.skipped)}
        self._append(
            "run", {"type": "run", "start": self._start, "config": config} | head | self._about | known | planned
        )

    def append(self, records: Iterable[Record]) -> list[Record]:
        """Records of seats, as they arrive; returns those that are new."""
        return self._log.append(records)

    def end(self, *, interrupted: str | None, missing: Sequence[str], error: str | None) -> None:
        """The last record, then the file is closed. A full disk is noted in memory, where it still counts."""
        if not self._has_begun:
            self.begin(seats=(), plan=Plan(assignments=()), expect={}, found={}, transport="none")
        elapsed_s = round(self._clock() - self._started, 3)
        told = {"interrupted": interrupted, "missing": list(missing), "error": error}
        body = {"type": "end", "end": _now(), "elapsed_s": elapsed_s, "num_duplicates": self._log.num_duplicates}
        try:
            self._append("end", body | told)
            self._log.close()
        except OSError as failure:
            full = f"the records could not be written: {failure.strerror}"
            self._log.records[-1]["missing"] = [*missing, full]

    def discard(self) -> None:
        """Leave nothing behind of a run that never began: the file goes, and the folders that were made for it."""
        self._log.close()
        (self.folder / FILE).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # somebody else has put something there
            for folder in self._made:
                folder.rmdir()

    def _append(self, subject: str, body: Record) -> None:
        self._seq += 1
        self._log.append([body | {"id": record_id(self.run, subject, seq=self._seq)}])


def make_folder(name: str, out: str | None, *, is_job: bool) -> tuple[Path, list[Path]]:
    """The run's new folder, absolute, and all folders that were made for it, innermost first.

    It is `out`, which must be new or empty, or else one named after run and time. Inside a Ray job the default lies
    under ~/rig-runs, because the job's working folder is thrown away.
    """
    if out is not None:
        return _given(Path(out).expanduser().absolute())
    root = (Path.home() / "rig-runs" if is_job else Path("runs")).absolute()
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for suffix in ["", *(f"-{number}" for number in range(2, 1000))]:
        folder = root / f"{stem}{suffix}"
        made = _missing(folder)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(f"{folder}: cannot be made ({error.strerror}); give another --out DIR") from None
        return folder, made
    raise UsageError(f"{root}: a thousand runs started this second; give --out DIR")


def _given(folder: Path) -> tuple[Path, list[Path]]:
    made = _missing(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_empty = not any(folder.iterdir())
    except OSError as error:
        raise UsageError(f"--out {folder}: cannot be made ({error.strerror}); expected a new or empty folder") from None
    if not is_empty:
        raise UsageError(
            f"--out {folder}: not empty; expected a new or empty folder, so that no run overwrites another"
        )
    return folder, made


def _missing(folder: Path) -> list[Path]:
    """The folders of a path that do not exist yet, innermost first."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def versions() -> dict[str, str]:
    """The driver's own versions, read from package metadata: nothing is imported."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for package in ("ray", "torch", "triton", "numpy", "staging-rig"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = ""
    return found


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
