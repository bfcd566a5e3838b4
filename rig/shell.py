"""Around a worker: what makes its bodies records, whichever process it lives in.

A shell names every record (run, subject, attempt, incarnation, sequence number), keeps it in the seat's spool, hands
it over in a batch, and keeps the promises of a worker that breaks its own: a crash of the rig's code, or a body that
JSON cannot carry, becomes an ERROR record.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from rig.records import Record, encode, record_id
from rig.spool import Spool

BATCH_MAX = 100
BATCH_S = 0.5


class Works(Protocol):
    """What a shell needs of a worker; `rig.worker.Worker` is one."""

    def describe(self) -> dict[str, Any]: ...
    def controls(self, backends: list[str]) -> Iterator[dict[str, Any]]: ...
    def run(self, assignment: dict[str, Any], target: dict[str, Any]) -> Iterator[dict[str, Any]]: ...
    def progress(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


class Shell:
    """One worker on one seat, for one run. Not thread-safe, except for `progress`."""

    def __init__(
        self,
        worker: Works,
        *,
        run: str,
        seat: str,
        incarnation: str,
        spool: Spool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker, self._run, self._seat, self._incarnation = worker, run, seat, incarnation
        self._spool, self._clock = spool, clock
        self._seq = 0
        self._told_of_spool = spool is None

    def describe(self) -> Record:
        """The seat record, which is not spooled: the driver completes it, and has it before any job begins."""
        return self._named(f"seat:{self._seat}", {"type": "seat", **self._worker.describe(), "seat": self._seat})

    def controls(self, backends: list[str]) -> Iterator[list[Record]]:
        """Batches of control records, and at the end one `controls` record that says how many there were."""
        return self._batches(self._controls(backends))

    def run(self, assignment: dict[str, Any], target: dict[str, Any]) -> Iterator[list[Record]]:
        """Batches of finding records, and at the end one assignment record."""
        return self._batches(self._assignment(assignment, target))

    def progress(self) -> dict[str, Any]:
        """Which assignment, which step; safe to call from another thread."""
        return self._worker.progress()

    def close(self, *, keep_spool: bool = False) -> None:
        """Let the worker go; what it raises is raised. The spool goes too, unless the driver may lack some of it."""
        if self._spool is not None:
            self._spool.close(keep=keep_spool)
        self._worker.close()

    def _controls(self, backends: list[str]) -> Iterator[Record]:
        subject, num = f"controls:{self._seat}", 0
        try:
            for body in self._worker.controls(backends):
                num += 1
                yield self._record(subject, {**body, "type": "control", "seat": self._seat})
        except Exception:
            error = traceback.format_exc()
            yield self._record(subject, {"type": "lost", "verdict": "ERROR", "during": "controls", "reason": error})
            return
        yield self._record(subject, {"type": "controls", "num": num})

    def _assignment(self, assignment: dict[str, Any], target: dict[str, Any]) -> Iterator[Record]:
        id_, started = assignment["id"], self._clock()
        last: Record | None = None
        try:
            for body in self._worker.run(assignment, target):
                about = {"assignment": id_, "seat": self._seat}
                if body["type"] == "assignment":
                    about["attempt"] = assignment.get("attempt", 1)
                last = self._record(id_, body | about, attempt=assignment.get("attempt", 1))
                yield last
        except Exception:
            last = None
            yield self._error(assignment, started, traceback.format_exc())
            return
        if last is None or last["type"] != "assignment":
            yield self._error(assignment, started, "the worker ended without an assignment record")

    def _record(self, subject: str, body: dict[str, Any], *, attempt: int = 1) -> Record:
        record = self._named(subject, body, attempt=attempt)
        line = encode(record)
        if self._spool is not None:
            self._spool.keep(line)
        return record

    def _named(self, subject: str, body: dict[str, Any], *, attempt: int = 1) -> Record:
        record = {**body, "seat": self._seat, "incarnation": self._incarnation}
        record["id"] = record_id(self._run, subject, attempt=attempt, incarnation=self._incarnation, seq=self._seq)
        self._seq += 1
        return record

    def _error(self, assignment: dict[str, Any], started: float, reason: str) -> Record:
        elapsed_s = round(self._clock() - started, 6)
        body = ended(assignment, "ERROR", reason=reason, elapsed_s=elapsed_s)
        return self._record(assignment["id"], body, attempt=body["attempt"])

    def _batches(self, records: Iterable[Record]) -> Iterator[list[Record]]:
        batch: list[Record] = []
        since = self._clock()
        for record in records:
            batch.append(record)
            batch += self._of_spool()
            # Shrinking performs lists that nobody performed before: what was found is safe before that begins.
            is_risky = record["type"] == "shrinking"
            if is_risky or len(batch) >= BATCH_MAX or self._clock() - since >= BATCH_S:
                yield batch
                batch, since = [], self._clock()
        if batch:
            yield batch

    def _of_spool(self) -> list[Record]:
        """Once, that the spool takes no more: what is made from here on, only the driver has."""
        if self._told_of_spool or self._spool is None or self._spool.trouble is None:
            return []
        self._told_of_spool = True
        return [self._record(f"spool:{self._seat}", {"type": "spool", "reason": self._spool.trouble})]


def ended(assignment: dict[str, Any], verdict: str, *, reason: str, elapsed_s: float = 0.0) -> dict[str, Any]:
    """The body of an assignment record for one that could not speak for itself."""
    keys = ("scenario", "target", "seat", "backend", "mode", "params")
    body = {"type": "assignment", "assignment": assignment["id"]} | {key: assignment[key] for key in keys}
    nothing = {"checked_words": 0, "findings": [], "latency": {}, "coverage": {}}
    attempt = assignment.get("attempt", 1)
    return body | nothing | {"verdict": verdict, "reason": reason, "attempt": attempt, "elapsed_s": elapsed_s}
