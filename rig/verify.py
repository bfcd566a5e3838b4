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
from rig.model import Expected, Model
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
        self._views: dict[str, list[Any]] = {}
        self._fresh: set[str] = set()  # names whose views are of this step
        self._pending: deque[_Pending] = deque()
        self._reported: set[tuple[str, str]] = set()
        self._addresses: dict[str, dict[int, int] | None] = {}
        self._slot: dict[str, int | None] = {}
        self._slots: dict[tuple[str, Mark], int] = {}
        self._homes: dict[str, int] = {}  # where staged tensors live
        self._copies: dict[str, _Copy] = {}
        self._aliases: dict[str, tuple[Any, int]] = {}
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
        yield from self._spoil(done)
        self.checked.counts[op.verb] += 1
        if isinstance(op, ops.Make) and op.what == "backed":
            yield from self._take(op.name, self.target.handle(op.name), None, done.mark)
        elif isinstance(op, PUBLISHING):
            handle = self.target.handle(op.name) if isinstance(op, ops.PublishBacked) else done.result
            yield from self._take(op.name, handle, op.num_rows, done.mark, copied=isinstance(op, ops.CopyToGpu))
            self._read_again(op, done.mark)
            self.checked.counts["publishes_under_readers"] += bool(self._pending)
        elif isinstance(op, ops.Stage | ops.StageElem) and op.beyond == "bounds" and self.target.is_ours(op.name):
            text = f"`{op.name}`: {op.verb} beyond its bounds was accepted: {op.to_dict()}"
            yield from self._report(Finding(kind="exception", tensor=op.name, summary=text))
        elif isinstance(op, ops.Drop):
            self._views.pop(op.name, None)
            for kept in (self._copies, self._aliases, self._homes):
                kept.pop(op.name, None)
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
        slot = self._slots.get((op.name, expected.mark)) if track.make.what == "pool" else self._slot.get(op.name)
        owned = track.make.what == "staged" or views[-1 - op.back].ours
        self._launch(views[-1 - op.back], op.num_rows, expected, stream=op.stream, slot=slot, owned=owned)
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
        ticket = self.readers.launch(view, num_rows, stream=stream)
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
        track, views = self.model.tracks[op.name], self._views[op.name]
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
                both = min(num_rows, op.num_rows)
                self._launch(view, both, Expected(track.form, both, mark), owned=True)
            self._aliases[op.name] = (views[-1], op.num_rows)

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
        try:
            problem = _unlike(handle, track.form, num_rows, self.target.device)
        except Exception as error:
            if type(handle) is torch.Tensor:
                raise
            problem = f"handed out a {type(handle).__name__} that cannot be looked at: {type(error).__name__}: {error}"
        views = self._views.setdefault(name, [])
        if problem is not None:
            views.clear()
            yield from self._report(
                Finding(kind="dtype", tensor=name, summary=f"{track.make.what} `{name}`: {problem}")
            )
            return
        if track.make.what != "staged":
            self._slot[name] = None if copied else self._number(track.make, handle.data_ptr(), num_rows)
            if (slot := self._slot[name]) is not None:
                self._slots[name, mark] = slot
            if len(self._slots) > _SLOTS_MAX:
                del self._slots[next(iter(self._slots))]
            view = self.readers.hold(handle, resident=copied or track.make.what == "nonuva", ours=copied)
            if name not in self._fresh:  # the engine lets go of what earlier steps were handed
                views.clear()
                self._fresh.add(name)
            views.append(view)
        else:
            views[:] = [self.readers.hold(handle, resident=True)]
            if self._homes.setdefault(name, handle.data_ptr()) != handle.data_ptr():
                text = f"staged `{name}` moved by step {self._step}: what holds its address reads stale memory"
                yield from self._report(Finding(kind="stale_alias", tensor=name, summary=text))

    def _number(self, make: ops.Make, address: int, num_rows: int | None) -> int | None:
        """The slot at an address, in the order of first use; None where it cannot be told: after growth, or beyond the
        slots that there may be."""
        known = self._addresses.setdefault(make.name, {})
        if known is None or (num_rows or 0) > self.model.tracks[make.name].form.length:
            self._addresses[make.name] = None
            return None
        if address not in known and len(known) < (make.depth or 0) + self.target.fenced:
            known[address] = len(known)
        return known.get(address)

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
