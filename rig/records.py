"""records.jsonl: one JSON object per line, appended as it arrives; the only memory of a run.

First a `run` record (config, seed, plan, expect, versions), then `seat`, `control`, `controls` (all controls of a seat
were tried), `finding`, `assignment`, `lost` (a seat that went away), `spool` (a seat's own copy ended), last `end`; and
behind it what `rig collect` fetched later, with a `collected` record that says from where. Every record has "id"
(run/subject/attempt/ incarnation/seq) and "type", and holds plain builtins only.

Each batch is flushed to the operating system before it counts, so killing the driver loses no record already received;
the file is fsynced once, when it is closed, so a power cut may lose the records since the last write-back. What a run
keeps in memory is one dictionary a record and 16 bytes that tell repeats: linear in assignments and findings (of which
an assignment has at most some dozens), and flat in operations and words.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rig.errors import UsageError

SCHEMA = 1
FILE = "records.jsonl"
Record = dict[str, Any]


def record_id(run: str, subject: str, *, attempt: int = 1, incarnation: str = "driver", seq: int = 0) -> str:
    """The identity of one record; `subject` is an assignment id, or what else the record is about."""
    return f"{run}/{subject}/{attempt}/{incarnation}/{seq}"


def encode(record: Mapping[str, Any]) -> str:
    """One line, keys sorted, so that equal records are equal bytes; TypeError or ValueError for what JSON lacks."""
    return json.dumps(record, sort_keys=True, allow_nan=False, separators=(",", ":"))


class RecordLog:
    """Appends records to a new file and keeps them for the verdict; exact repeats are dropped and counted."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("x", encoding="utf-8")
        with contextlib.suppress(OSError):  # a file system without locks; then nobody is told that a run still writes
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._seen: set[bytes] = set()
        self.records: list[Record] = []
        self.num_duplicates = 0

    def append(self, batch: Iterable[Record]) -> list[Record]:
        """Write and flush a batch; returns what was new. OSError if the disk is full, with the batch kept in memory."""
        new, lines = [], []
        for record in batch:
            line = encode(record)
            told = hashlib.blake2b(line.encode(), digest_size=16).digest()
            if told in self._seen:
                self.num_duplicates += 1
                continue
            self._seen.add(told)
            self.records.append(json.loads(line))
            new.append(record)
            lines.append(line + "\n")
        self._file.write("".join(lines))
        self._file.flush()
        return new

    def close(self) -> None:
        """Make the file durable and close it."""
        import os

        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        finally:
            self._file.close()


def read(folder: Path) -> list[Record]:
    """The records of a run folder; a last line cut off by a kill is dropped. `UsageError` for anything else."""
    path = folder / FILE
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UsageError(f"{path}: cannot be read ({reason}); expected the folder of a run") from None
    records = []
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if not line.endswith("\n"):
            break
        try:
            record = json.loads(line)
            encode(record)  # neither NaN nor infinity
            known = isinstance(record, dict) and isinstance(record["id"], str) and isinstance(record["type"], str)
        except (ValueError, KeyError, RecursionError):
            known = False
        if not known:
            raise UsageError(f"{path}:{number}: not a record; expected one JSON object with id and type per line")
        records.append(record)
    if not records or records[0]["type"] != "run":
        raise UsageError(f"{path}:1: found no run record; expected it first")
    if records[0].get("schema") != SCHEMA:
        raise UsageError(f"{path}:1: records of schema {records[0].get('schema')!r}; this version reads {SCHEMA}")
    from rig.record_shapes import check

    check(records, path)
    return records


class Distinct(NamedTuple):
    """Records without repeats, sorted by id; ids that came with unlike contents."""

    records: list[Record]
    num_duplicates: int
    conflicts: list[str]


def distinct(records: Iterable[Record]) -> Distinct:
    """Drop and count exact repeats, name ids that mean two things."""
    lines: dict[str, set[str]] = {}
    kept: list[Record] = []
    num_duplicates = 0
    for record in records:
        line = encode(record)
        known = lines.setdefault(record["id"], set())
        num_duplicates += line in known
        if line not in known:
            known.add(line)
            kept.append(record)
    conflicts = sorted(id_ for id_, known in lines.items() if len(known) > 1)
    return Distinct(sorted(kept, key=_order), num_duplicates, conflicts)


def incarnation(record: Record) -> str:
    """Which life of a seat's process wrote the record; "driver" for the driver's own."""
    return str(record["id"].rsplit("/", 2)[1])


def _order(record: Record) -> tuple[str, int, str]:
    head, _, seq = record["id"].rpartition("/")
    return head, int(seq) if seq.isdigit() else 0, encode(record)
