"""The observer that checks: launches readers, keeps the model in step, compares what was seen, explains errors."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rig import ops
from rig.cause import Finding, Sighting, explain, lost
from rig.drive import PUBLISHING, Performed, StopDriveError
from rig.handles import Handles
from rig.model import Expected, Model
from rig.readers import Readers, Ticket
from rig.scales import Scales
from rig.target import Target
from rig.words import Bits, Form, Mark, Payload

_EAGER = ops.Apply | ops.FusedApply | ops.CopyToGpu | ops.Expose  # where upstream's module works on the device
_WRONG_MAX = 32  # wrong reads after which an assignment stops


@dataclass(slots=True)
class Checked:
    """What a verify pass counted."""

    nbytes: int = 0
    wrong: Counter[str] = field(default_factory=Counter)  # findings by kind, repeated ones too
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def words(self) -> int:
        return self.nbytes // 4

    def coverage(self) -> dict[str, int]:
        """All counts: operations by verb, reads, and wrong reads by kind."""
        counts = {key: n for key, n in sorted(self.counts.items()) if n}
        return counts | {f"wrong_{kind}": n for kind, n in sorted(self.wrong.items())}


@dataclass(slots=True)
class _Pending:
    ticket: Ticket
    sighting: Sighting


@dataclass(slots=True)
class _Copy:
    """What a pool last copied for the caller, who may keep it: it is read again when the pool has gone round."""

    view: Any
    expected: Expected
    num_publishes: int = 0


class Verify:
    """Judges every read of one pass. Objects of our library must also refuse what is out of bounds."""

    def __init__(self, *, target: Target, readers: Readers, payload: Payload) -> None:
        self.target, self.readers, self.payload = target, readers, payload
        self.model = Model()
        self.checked = Checked()
        self._handles = Handles(target, readers)
        self._scales = Scales(target.device)
        self._pending: deque[_Pending] = deque()
        self._reported: set[tuple[str, str]] = set()
        self._copies: dict[str, _Copy] = {}
        self._aliases: dict[str, tuple[Any, int]] = {}
        self._scratch = np.empty(0, np.uint8)
        self._step, self._in_flight = 0, 1

    def before(self, op: ops.Op) -> None:
        """A foreign object's device work is eager: reads of what it writes run first."""
        name = op.names[0] if isinstance(op, ops.PublishAll) else getattr(op, "name", "")
        if isinstance(op, _EAGER | PUBLISHING | ops.PublishAll) and not self.target.is_ours(name):
            everything = self.target.stream_ordered and isinstance(op, PUBLISHING | ops.PublishAll)
            if everything or isinstance(op, _EAGER):
                self.readers.flush(everything=everything)

    def after(self, done: Performed) -> Iterator[Finding]:
        """Let the model follow; take hold of what was handed out."""
        op = done.op
        if isinstance(op, ops.Step):
            self._step, self._in_flight = op.number, op.in_flight
            self.readers.begin_step()
            self._handles.begin_step()
        if isinstance(op, ops.Make | ops.Drop):
            self._forget(op.name)
        if isinstance(op, ops.Collide):
            assert done.bits is not None
            self.model.collide(op, mark=done.mark, bits=done.bits, accepted=done.result)
            self.checked.counts["collisions_refused"] += not done.result
        else:
            self.model.perform(op, mark=done.mark, bits=done.bits)
        yield from self._spoil(done)
        self.checked.counts[op.verb] += 1
        yield from self._taken(done)
        if isinstance(op, ops.Weigh):
            yield from self._weigh()
        done.result = None
        self.readers.poll(self._step)

    def _taken(self, done: Performed) -> Iterator[Finding]:
        """Take hold of what was handed out, or say that a call should have raised."""
        op = done.op
        if getattr(op, "beyond", "") in ops.REFUSED:
            name = getattr(op, "name", "")
            if self.target.is_ours(name) or op.beyond != "bounds":  # type: ignore[attr-defined]
                text = f"`{name}`: {op.verb} was accepted, with what it has to refuse: {op.to_dict()}"
                yield from self._report(Finding(kind="exception", tensor=name, summary=text))
        elif isinstance(op, ops.Make) and op.what == "backed":
            yield from self._take(op.name, self.target.handle(op.name), None, done.mark)
        elif isinstance(op, ops.PublishAll):
            for name in op.names:
                yield from self._take(name, self.target.handle(name), None, done.mark)
            self.checked.counts["publishes_under_readers"] += len(op.names) * bool(self._pending)
        elif isinstance(op, PUBLISHING):
            handle = done.result
            if isinstance(op, ops.PublishBacked) and hasattr(handle, "data_ptr"):
                handle = self.target.handle(op.name)  # what others look at; the call returns the same
            yield from self._take(op.name, handle, op.num_rows, done.mark, copied=isinstance(op, ops.CopyToGpu))
            self._read_again(op, done.mark)
            self.checked.counts["publishes_under_readers"] += bool(self._pending)

    def _take(
        self, name: str, handle: Any, num_rows: int | None, mark: Mark, *, copied: bool = False
    ) -> Iterator[Finding]:
        track = self.model.tracks[name]
        finding = self._handles.take(track, handle, num_rows, mark, step=self._step, copied=copied)
        if finding is not None:
            yield from self._report(finding)

    def _forget(self, name: str) -> None:
        self._handles.forget(name)
        for kept in (self._copies, self._aliases):
            kept.pop(name, None)

    def _weigh(self) -> Iterator[Finding]:
        self.model.forget_past()
        self._handles.forget_past()
        self._scales.weigh()
        if leak := self._scales.leak():
            yield from self._report(Finding(kind="leak", summary=f"by step {self._step} {leak}"))

    def refused(self, op: ops.Op, error: BaseException) -> None:
        """Beyond upstream's contract a target may refuse; what it holds must stay as it was, as later reads show."""
        self.checked.counts["refusals"] += 1

    def read(self, op: ops.Read) -> Iterator[Finding]:
        """Launch a reader of the handle, and note what it must see."""
        track = self.model.tracks[op.name]
        if track.make.what == "staged":
            yield from self._take(op.name, self.target.handle(op.name), None, track.last)
        views = self._handles.views.get(op.name, [])
        if len(views) <= op.back:  # nothing sound was handed out, which is a finding already
            return
        expected = self.model.expect(op)
        known = self._handles
        slot = known.slots.get((op.name, expected.mark)) if track.make.what == "pool" else known.slot.get(op.name)
        owned = track.make.what == "staged" or views[-1 - op.back].ours
        num_rows = expected.num_rows if op.first else op.num_rows
        self._launch(views[-1 - op.back], num_rows, expected, stream=op.stream, slot=slot, owned=owned)
        if op.stream != "main":
            self.target.retire(self.readers.stream(op.stream))

    def _launch(
        self,
        view: Any,
        num_rows: int | None,
        expected: Expected,
        *,
        stream: str = "main",
        slot: int | None = None,
        owned: bool,
    ) -> None:
        ticket = self.readers.launch(view, num_rows, stream=stream, first=expected.first)
        seen = Sighting(expected=expected, step=self._step, slot=slot, in_flight=self._in_flight, owned=owned)
        self._pending.append(_Pending(ticket, seen))
        self.checked.counts["reads"] += 1
        self.checked.counts["reads_content_only"] += ticket.content_only

    def _spoil(self, done: Performed) -> Iterator[Finding]:
        """The caller's memory is the caller's: the target left it as it was, and does not need it any more."""
        op, given = done.op, self.target.given
        given[:] = [0] * len(given)
        if isinstance(op, ops.Publish | ops.CopyToGpu) and op.via != "list" and done.bits is not None:
            form = self.model.tracks[op.name].form
            extent = form.extent(op.num_rows)
            if not np.array_equal(
                done.bits, self.payload.block(form, done.mark, extent=extent, out=self._buffer(form, extent))
            ):
                text = f"{op.verb} `{op.name}` changed the {op.via} that it was given in step {self._step}"
                yield from self._report(Finding(kind="corruption", tensor=op.name, summary=text))

    def _read_again(self, op: Any, mark: Mark) -> None:
        """Read what must outlive its publish: a caller's copy, and an old alias of a UvaBuffer, which is live."""
        track, views = self.model.tracks[op.name], self._handles.views[op.name]
        copied = isinstance(op, ops.CopyToGpu)
        if (copy := self._copies.get(op.name)) is not None:
            copy.num_publishes += 1
            if copied or copy.num_publishes == track.make.depth:
                self._launch(copy.view, copy.expected.num_rows, copy.expected, owned=True)
        if copied and views:
            self._copies.pop(op.name, None)
            if not op.out:
                self._copies[op.name] = _Copy(views[-1], self.model.expect(ops.Read(name=op.name)))
        if track.make.what == "uva" and views:
            if op.name in self._aliases:
                view, num_rows = self._aliases[op.name]
                both = min(num_rows, op.num_rows or num_rows)
                self._launch(view, both, Expected(track.form, both, mark), owned=True)
            self._aliases[op.name] = (views[-1], op.num_rows or track.form.length)

    def settle(self, until: int | None) -> Iterator[Finding]:
        """Judge the readers of steps <= `until` in the order of their launch."""
        while self._pending and (until is None or self._pending[0].sighting.step <= until):
            pending = self._pending.popleft()
            yield from self._judge(pending.ticket, pending.sighting)

    def _judge(self, ticket: Ticket, seen: Sighting) -> Iterator[Finding]:
        raw = ticket.wait()
        if raw is None:
            finding = lost(seen, freed_in_step=ticket.freed_in_step, payload=self.payload)
            yield from self._report(finding)
            return
        form = seen.expected.form
        extent = form.extent(seen.expected.num_rows)
        got = raw.view(form.bits).reshape(extent)
        want = seen.expected.block(self.payload, out=self._buffer(form, extent))
        self.checked.nbytes += got.nbytes
        if not np.array_equal(got, want):
            finding = explain(
                seen, got, want, payload=self.payload, tracks=self.model.tracks, slots=self._handles.slots
            )
            yield from self._report(finding)
        ticket.release()

    def _report(self, finding: Finding) -> Iterator[Finding]:
        """The first finding of a kind and tensor; the others are counted, and enough of them end the pass.

        Tensors made anew are named NAME#STEP and count as one.
        """
        self.checked.wrong[finding.kind] += 1
        key = (finding.kind, (finding.tensor or "").partition("#")[0])
        if key not in self._reported:
            self._reported.add(key)
            yield finding
        if self.checked.wrong.total() >= _WRONG_MAX:
            self._pending.clear()
            raise StopDriveError(f"stopped in step {self._step} after {_WRONG_MAX} wrong reads")

    def _buffer(self, form: Form, extent: tuple[int, int]) -> Bits:
        nbytes = extent[0] * extent[1] * form.itemsize
        if self._scratch.nbytes < nbytes:
            self._scratch = np.empty(nbytes, np.uint8)
        return self._scratch[:nbytes].view(form.bits).reshape(extent)
