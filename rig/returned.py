"""What comes back of a submitted run: its folder, in pieces; and how the run ended, by all that is known."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rig import failures, parcel
from rig.config import RunConfig
from rig.digest import digest
from rig.errors import UsageError
from rig.jobs import Job, Jobs, Log, Unreachable
from rig.journal import Journal
from rig.records import FILE, Record, read
from rig.reports import json as report_json
from rig.shipment import Shipment
from rig.verdict import EXIT_USAGE, EXITS

PIECE_S = 120.0  # for the small job that prints one piece
_POLL_S = 0.2
_TRIES, _PAUSE_S = 3, 3.0
Say = Callable[[str], None]


class Ending(NamedTuple):
    """How a submitted run ended, and where its report is."""

    verdict: str
    exit_code: int
    report: str


class Returned:
    """The run's folder here: empty, until `fetch`."""

    def __init__(self, config: RunConfig, folder: tuple[Path, list[Path]], *, about: Mapping[str, Any]) -> None:
        self.folder, self._made = folder
        self._config, self._about = config, about

    @property
    def report(self) -> dict[str, Any] | None:
        """The run's own report, if it came."""
        try:
            told: dict[str, Any] = json.loads((self.folder / report_json.FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return told

    def fetch(self, server: Jobs, sent: Shipment, archive: Path, node: str, *, say: Say) -> None:
        """Bring the folder here from the node where the job ran; what goes wrong is said."""
        started = time.monotonic()

        def ask(index: int) -> str:
            for number in range(1, _TRIES):
                try:
                    return _piece(server, sent, archive, node, index=index, number=number)
                except Unreachable as error:
                    say(f"rig: piece {index + 1} of the run's folder did not come ({error}); asking again")
                    time.sleep(_PAUSE_S)
            return _piece(server, sent, archive, node, index=index, number=_TRIES)

        try:
            nbytes = parcel.receive(ask, self.folder)
            say(f"rig: brought back {nbytes / 1e6:.2f} MB in {time.monotonic() - started:.1f} s to {self.folder}")
        except (parcel.Damaged, Unreachable, OSError) as error:
            say(f"rig: the run's folder could not be brought back ({error}); it is {sent.folder} on node {node}")

    def judge(self, reason: str) -> Ending:
        """Judge here what a run left that did not write its report; with no records, INCOMPLETE for `reason`."""
        records = self._records()
        if not records:
            (self.folder / FILE).unlink(missing_ok=True)
            journal = Journal(self._config, folder=(self.folder, []), about=self._about)
            journal.end(interrupted=None, missing=[reason], error=None)
            records = journal.records
        report = digest(records)
        report_json.write(report, self.folder)
        failures.write(report, records, self.folder)
        return Ending(report["verdict"], report["exit_code"], str(self.folder / report_json.FILE))

    def _records(self) -> list[Record]:
        """What came of the records, up to where the job died; none if that was before the first."""
        try:
            return read(self.folder)
        except UsageError:
            return []

    def discard(self) -> None:
        """Leave nothing behind: what came goes, and the folders that were made for it."""
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        with contextlib.suppress(OSError):  # somebody else has put something there
            for folder in self._made:
                folder.rmdir()


def conclude(job: Job, log: Log, returned: Returned, *, job_id: str, say: Say) -> Ending:
    """The run's true end. Success is believed only if the rig said so and its process ended so; `UsageError` if the
    job's own check refused the run.
    """
    report = returned.report
    here = str(returned.folder / report_json.FILE)
    told = log.verdict
    if told is None and report and job.exit_code in (None, report["exit_code"]):
        told = report["verdict"], report["exit_code"], here  # the log was lost, the report was not
    if told and (told[1] or job.status == "SUCCEEDED"):
        return Ending(told[0], told[1], here if report else told[2])
    if told is None and job.exit_code == EXIT_USAGE and log.last.startswith("rig: "):
        raise UsageError(f"job {job_id} did not run: {log.last.removeprefix('rig: ')}")
    message = job.message.strip().partition("\n")[0]
    how = f"though the rig said {told[0]}" if told else "without the rig's last line"
    reason = f"job {job_id} ended as {job.status} {how}: {message or 'no message'}"
    say(f"rig: {reason}")
    if report:  # it was written, and then something went wrong
        return Ending("INCOMPLETE", EXITS["INCOMPLETE"], here)
    return returned.judge(reason)


def _piece(server: Jobs, sent: Shipment, archive: Path, node: str, *, index: int, number: int) -> str:
    """The log of a small job on the node that prints one piece; `Damaged` if there is no folder."""
    job_id = f"{sent.job}-piece{index}-try{number}"
    entrypoint = f"python -m rig.parcel {sent.folder} {index}"
    server.submit(job_id, entrypoint=entrypoint, archive=archive, metadata={"piece_of": sent.job}, node=node)
    deadline = time.monotonic() + PIECE_S
    while not (job := server.info(job_id)).is_over:
        if time.monotonic() > deadline:
            server.stop(job_id)
            raise Unreachable(f"job {job_id} is still {job.status} after {PIECE_S:g} s")
        time.sleep(_POLL_S)
    if job.exit_code == parcel.EXIT_NO_FOLDER:
        raise parcel.Damaged("the job made no folder")
    text = server.log(job_id)
    if job.status != "SUCCEEDED":
        raise Unreachable(f"job {job_id} ended as {job.status}: {job.message[-200:]}")
    return text
