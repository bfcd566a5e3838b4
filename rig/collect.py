"""`rig collect DIR`: records that a run's driver never got, from the spools of its workers into the run's folder.

Spools come from the run's own folder, the temp folder of this machine (`--local`), every node of a cluster
(`--address`, RAY_ADDRESS), or files that were copied by hand. They are merged by record id: what is known is dropped
and counted, the same id with other bytes makes the run an ERROR, and what is new is appended and fsynced before a copy
in the run's folder is removed; the nodes keep theirs.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rig import record_shapes
from rig.errors import UsageError
from rig.records import FILE, Record, encode, incarnation, read, record_id
from rig.report import write_reports
from rig.spool import FOLDER, spools_of, temp_folder

Say = Callable[[str], None]
_OF_WORKERS = frozenset({"control", "controls", "finding", "shrinking", "replay", "assignment", "lost", "spool"})


@dataclass(slots=True)
class Spooled:
    """A spool's records, and where it was found."""

    where: str
    records: list[Record]
    new: list[Record] = field(default_factory=list)
    num_other: int = 0  # new ones whose id is known with other bytes

    @property
    def seat(self) -> str:
        """Whose records these are."""
        return str(self.records[0]["seat"]) if self.records else ""


def collect(folder: Path, spools: Sequence[str], *, address: str | None, local: bool, say: Say) -> int:
    """Fetch, merge, judge and report again; returns the run's exit. `UsageError` if there is nowhere to look, or the
    run is still going on; what the folder has stays as it is then.
    """
    known = read(folder)
    run, own = known[0]["run"], folder / FOLDER
    told = [Path(r["spool"]).parent for r in known if r["type"] == "seat" and r.get("spool")]
    folders = sorted({str(path) for path in (temp_folder(), *told) if path != own.absolute()})
    address = address or (None if local else os.environ.get("RAY_ADDRESS"))
    with _nobody_writes(folder / FILE):
        given = [path for name in spools for path in _files(Path(name), run)]
        places = [(str(path), path) for path in given]
        if local:
            places += [(str(path), path) for folder_ in folders for path in spools_of(run, Path(folder_))]
        elif address:
            places += _from_cluster(run, own, folders, address, say)
        fetched = {path for _, path in places}
        places += [(str(path), path) for path in spools_of(run, own) if path not in fetched]
        if not (places or local or address or spools):
            raise UsageError(
                f"{folder}: no spool lies in {FOLDER}/; expected --address of the run's cluster, --local for the temp "
                "folder of this machine, or SPOOL files copied from the nodes"
            )
        found = merge(known, [Spooled(where, load(path, run)) for where, path in places])
        _append(folder / FILE, [*(r for one in found for r in one.new), *_noted(known, found)])
        for path in spools_of(run, own):
            path.unlink()
        with contextlib.suppress(OSError):  # it holds something that is no spool
            own.rmdir()
    _tell(known, found, say)
    return write_reports(read(folder), folder, formats=known[0]["config"]["reports"])[1]


def merge(known: Iterable[Record], spooled: Sequence[Spooled]) -> list[Spooled]:
    """The same, each with what of it is new: not among `known`, nor in one before it."""
    lines: dict[str, set[str]] = {}
    for record in known:
        lines.setdefault(record["id"], set()).add(encode(record))
    for one in spooled:
        for record in one.records:
            told, line = lines.setdefault(record["id"], set()), encode(record)
            if line not in told:
                one.num_other += bool(told)
                one.new.append(record)
                told.add(line)
    return list(spooled)


def load(path: Path, run: str) -> list[Record]:
    """The records of a spool; a last line that was cut off is dropped. `UsageError` for a file that is no spool of
    `run`.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        records = [json.loads(line) for line in lines if line.endswith("\n")]
        for record in records:
            encode(record)  # neither NaN nor infinity
            if record["type"] not in _OF_WORKERS or not isinstance(record["id"], str) or not record["seat"]:
                raise ValueError(f"a record of type {record['type']!r}")
            if not record["id"].startswith(f"{run}/") or incarnation(record) == "driver":
                raise ValueError(f"record {record['id']} is not of a seat of this run, {run}")
        record_shapes.check(records, path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); expected a spool of this run") from None
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise UsageError(f"{path}: {error}; expected a spool of this run") from None
    return records


def _from_cluster(run: str, own: Path, folders: Sequence[str], address: str, say: Say) -> list[tuple[str, Path]]:
    """Copies in the run's folder of all spools that a cluster's nodes have, each with the node it came from."""
    from rig.cluster import open_cluster

    own.mkdir(exist_ok=True)
    with open_cluster(address, local_nodes=1):
        from rig.cluster_collect import fetch

        return fetch(run, folders, into=own, say=say)


def _files(path: Path, run: str) -> list[Path]:
    if path.is_dir() and not (found := list(spools_of(run, path))):
        raise UsageError(f"{path}: no spool of {run} lies there; expected rig-spool-{run}-*.jsonl")
    return found if path.is_dir() else [path]


@contextlib.contextmanager
def _nobody_writes(path: Path) -> Iterator[None]:
    """`UsageError` while a driver has the file open; inside the block no other `rig collect` begins."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{path}: the run is still going on; expected one whose driver has ended") from None
        except OSError:  # a file system without locks
            pass
        yield


def _append(path: Path, records: Sequence[Record]) -> None:
    """Durably, all or none; a last line that a kill cut off goes first."""
    with path.open("r+b", buffering=0) as file:
        size = file.read().rfind(b"\n") + 1
        file.truncate(size)
        file.seek(size)
        data = "".join(encode(record) + "\n" for record in records).encode()
        try:
            while data:
                data = data[file.write(data) :]
            os.fsync(file.fileno())
        except OSError as error:
            file.truncate(size)
            raise UsageError(f"{path}: {error.strerror}; nothing was merged, make room and try again") from None


def _noted(known: Sequence[Record], found: Sequence[Spooled]) -> list[Record]:
    """A record of where new records came from; none if there were none."""
    sources = [{"where": one.where, "seat": one.seat, "num_new": len(one.new)} for one in found if one.new]
    if not sources:
        return []
    before = sum(record["type"] == "collected" for record in known)
    body: dict[str, Any] = {"type": "collected", "sources": sources}
    return [body | {"id": record_id(known[0]["run"], "collect", incarnation="collect", seq=before)}]


def _tell(known: Sequence[Record], found: Sequence[Spooled], say: Say) -> None:
    """What came from where, and which seats that were lost have no spool here."""
    for one in found:
        other = f", {one.num_other} of them with an id that is known with other bytes" if one.num_other else ""
        say(f"{one.seat or '-'}  {len(one.records)} records, {len(one.new)} new{other}, from {one.where}")
    is_over = any(record["type"] == "end" for record in known)
    lost = {record["seat"] for record in known if record["type"] == "lost"}
    seats = {record["seat"]: record for record in known if record["type"] == "seat"}
    for id_, seat in seats.items():
        if (id_ in lost or not is_over) and id_ not in {one.seat for one in found} and seat.get("spool"):
            where = seat.get("address") or seat.get("node") or "its node"
            say(f"{id_}  nothing found; if {where} has {seat['spool']}, copy it here and give its path")
