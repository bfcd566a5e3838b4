"""The observer that times: the same stream with fresh objects, no model and no checks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from rig import ops
from rig.cause import Finding
from rig.drive import PUBLISHING, Performed
from rig.readers import Readers, Ticket
from rig.stats import Histogram
from rig.target import Target

_UNTIMED = (ops.Make, ops.Step, ops.Drop, ops.WriteBacked, ops.Weigh)
_BATCH = 1024


class Measure:
    """Histograms of the target's calls, by verb.

    `readers` keep a real device busy and the steps in flight; None on a CPU, where they only cost the host time.
    """

    def __init__(self, *, target: Target, readers: Readers | None) -> None:
        self.target, self.readers = target, readers
        self._samples: dict[str, list[int]] = {}
        self._histograms: dict[str, Histogram] = {}
        self._handles: dict[str, Any] = {}
        self._pending: deque[tuple[int, Ticket]] = deque()
        self._step = 0

    def before(self, op: ops.Op) -> None:
        """Nothing: what is timed is the target alone."""

    def after(self, done: Performed) -> Iterator[Finding]:
        op = done.op
        if isinstance(op, ops.Step):
            self._step = op.number
            if self.readers is not None:
                self.readers.begin_step()
        if not isinstance(op, _UNTIMED):
            samples = self._samples.setdefault(op.verb, [])
            samples.append(done.elapsed_ns)
            if len(samples) >= _BATCH:
                self._flush(op.verb)
        if self.readers is not None and isinstance(op, PUBLISHING):
            self._handles[op.name] = self.target.handle(op.name) if isinstance(op, ops.PublishBacked) else done.result
        return iter(())

    def refused(self, op: ops.Op, error: BaseException) -> None:
        """Refusals are not timed."""

    def read(self, op: ops.Read) -> Iterator[Finding]:
        if self.readers is not None:
            handle = self._handles.get(op.name)
            if handle is None:
                handle = self.target.handle(op.name)
            view = self.readers.hold(handle, resident=True)
            self._pending.append((self._step, self.readers.launch(view, op.num_rows, stream=op.stream, first=op.first)))
            if op.stream != "main":
                self.target.retire(self.readers.stream(op.stream))
        return iter(())

    def settle(self, until: int | None) -> Iterator[Finding]:
        while self._pending and (until is None or self._pending[0][0] <= until):
            _, ticket = self._pending.popleft()
            ticket.wait()
            ticket.release()
        return iter(())

    def latency(self) -> dict[str, dict[str, Any]]:
        """Per verb: n, p50_ns, p90_ns, p99_ns, max_ns, histogram."""
        for verb in list(self._samples):
            self._flush(verb)
        return {verb: self._histograms[verb].summary() for verb in sorted(self._histograms)}

    def _flush(self, verb: str) -> None:
        samples = self._samples.get(verb)
        if samples:
            self._histograms.setdefault(verb, Histogram()).record_many(samples)
            samples.clear()
