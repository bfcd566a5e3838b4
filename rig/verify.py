"""The observer that checks: launches readers, keeps the model in step, compares what was seen, explains errors."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from rig import ops, values
from rig.cause import Finding, Sighting, explain, lost
from rig.drive import PUBLISHING, Performed, StopDriveError
from rig.model import Model
from rig.readers import Readers, Ticket
from rig.target import Target
from rig.words import Bits, Form, Mark, Payload

_EAGER = ops.Apply | ops.FusedApply | ops.CopyToGpu | ops.Expose  # where upstream's module works on the device
_WRONG_MAX = 32  # wrong reads after which an assignment stops
_SLOTS_MAX = 4096  # publishes whose slot is remembered


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


class Verify:
    """Judges every read of one pass. Objects of our library must also refuse what is out of bounds."""

    def __init__(self, *, target: Target, readers: Readers, payload: Payload) -> None:
        self.target, self.readers, self.payload = target, readers, payload
        self.model = Model()
        self.checked = Checked()
        self._views: dict[str, list[Any]] = {}
        self._fresh: set[str] = set()  # names whose views are of this step
        self._pending: deque[_Pending] = deque()
        self._reported: set[tuple[str, str]] = set()
        self._addresses: dict[str, dict[int, int]] = {}
        self._slot: dict[str, int | None] = {}
        self._slots: dict[tuple[str, Mark], int] = {}
        self._scratch = np.empty(0, np.uint8)
        self._step, self._in_flight = 0, 1

    def before(self, op: ops.Op) -> None:
        """A foreign object's device work is eager: reads of what it writes run first."""
        if isinstance(op, _EAGER | PUBLISHING) and not self.target.is_ours(op.name):
            everything = self.target.stream_ordered and isinstance(op, PUBLISHING)
            if everything or isinstance(op, _EAGER):
                self.readers.flush(everything=everything)

    def after(self, done: Performed) -> Iterator[Finding]:
        """Let the model follow; take hold of what was handed out."""
        op = done.op
        if isinstance(op, ops.Step):
            self._step, self._in_flight = op.number, op.in_flight
            self.readers.begin_step()
            self._fresh.clear()
        self.model.perform(op, mark=done.mark, bits=done.bits)
        self.checked.counts[op.verb] += 1
        if isinstance(op, ops.Make) and op.what == "backed":
            yield from self._take(op.name, self.target.handle(op.name), None, done.mark)
        elif isinstance(op, PUBLISHING):
            handle = self.target.handle(op.name) if isinstance(op, ops.PublishBacked) else done.result
            yield from self._take(op.name, handle, op.num_rows, done.mark, copied=isinstance(op, ops.CopyToGpu))
            self.checked.counts["publishes_under_readers"] += bool(self._pending)
        elif isinstance(op, ops.Stage | ops.StageElem) and op.beyond == "bounds" and self.target.is_ours(op.name):
            text = f"`{op.name}`: {op.verb} beyond its bounds was accepted: {op.to_dict()}"
            yield from self._report(Finding(kind="exception", tensor=op.name, summary=text))
        elif isinstance(op, ops.Drop):
            self._views.pop(op.name, None)
        done.result = None
        self.readers.poll(self._step)

    def refused(self, op: ops.Op, error: BaseException) -> None:
        """Beyond upstream's contract a target may refuse; what it holds must stay as it was, as later reads show."""
        self.checked.counts["refusals"] += 1

    def read(self, op: ops.Read) -> Iterator[Finding]:
        """Launch a reader of the handle, and note what it must see."""
        track = self.model.tracks[op.name]
        if track.make.what == "staged":
            yield from self._take(op.name, self.target.handle(op.name), None, track.last)
        views = self._views.get(op.name, [])
        if len(views) <= op.back:  # nothing sound was handed out, which is a finding already
            return
        expected = self.model.expect(op)
        ticket = self.readers.launch(views[-1 - op.back], op.num_rows, stream=op.stream)
        if op.stream != "main":
            self.target.retire(self.readers.stream(op.stream))
        slot = self._slots.get((op.name, expected.mark)) if track.make.what == "pool" else self._slot.get(op.name)
        self._pending.append(
            _Pending(ticket, Sighting(expected=expected, step=self._step, slot=slot, in_flight=self._in_flight))
        )
        self.checked.counts["reads"] += 1
        self.checked.counts["reads_content_only"] += ticket.content_only

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
            finding = explain(seen, got, want, payload=self.payload, tracks=self.model.tracks, slots=self._slots)
            yield from self._report(finding)
        ticket.release()

    def _take(
        self, name: str, handle: Any, num_rows: int | None, mark: Mark, *, copied: bool = False
    ) -> Iterator[Finding]:
        """Take hold of a handle if it is what was promised; else it is a finding and nothing is read."""
        track = self.model.tracks[name]
        problem = _unlike(handle, track.form, num_rows, self.target.device)
        views = self._views.setdefault(name, [])
        if problem is not None:
            views.clear()
            yield from self._report(
                Finding(kind="dtype", tensor=name, summary=f"{track.make.what} `{name}`: {problem}")
            )
            return
        if track.make.what != "staged":
            known = self._addresses.setdefault(name, {})
            self._slot[name] = known.setdefault(handle.data_ptr(), len(known))
            self._slots[name, mark] = known[handle.data_ptr()]
            if len(self._slots) > _SLOTS_MAX:
                del self._slots[next(iter(self._slots))]
            view = self.readers.hold(handle, resident=copied or track.make.what == "nonuva", ours=copied)
            if name not in self._fresh:  # the engine lets go of what earlier steps were handed
                views.clear()
                self._fresh.add(name)
            views.append(view)
        else:
            views[:] = [self.readers.hold(handle, resident=True)]

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


def _unlike(handle: Any, form: Form, num_rows: int | None, device: torch.device) -> str | None:
    """How a handle differs from the tensor that was promised."""
    if not isinstance(handle, torch.Tensor):
        return f"handed out {type(handle).__name__}, not a tensor"
    shape, dtype = form.shape(num_rows), values.TORCH[form.dtype]
    if handle.dtype != dtype:
        return f"handed out {handle.dtype}, asked for {dtype}"
    if tuple(handle.shape) != shape:
        return f"handed out shape {tuple(handle.shape)}, expected {shape}"
    if handle.layout != torch.strided:
        return f"handed out a tensor of layout {handle.layout}"
    if handle.device != device:
        return f"handed out memory of {handle.device}, expected {device}"
    return None
