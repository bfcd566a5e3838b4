"""The numpy model: performs every operation in lock step with the target and knows what each read must return."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rig import ops
from rig.words import Bits, Form, Mark, Payload

_NEVER = Mark(0, -1)
_HISTORY = 4096  # writes remembered per tensor, to trace a wrong word; older ones stay unexplained


class Written(NamedTuple):
    """One write of the past: `extent` (rows, columns) of payload from `at` (row, column) on."""

    mark: Mark
    at: tuple[int, int]
    extent: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Expected:
    """What a read must return: the words of one publish in closed form, or `bits` copied when the read was launched."""

    form: Form
    num_rows: int | None
    mark: Mark  # the publish, or the last write before the read
    bits: Bits | None = None
    first: int = 0  # the row where it begins

    def block(self, payload: Payload, *, out: Bits | None = None) -> Bits:
        """The expected bits, (rows, columns); into `out` if they are computed."""
        extent = self.form.extent(self.num_rows)
        return self.bits if self.bits is not None else payload.block(self.form, self.mark, extent=extent, out=out)


@dataclass(slots=True)
class Track:
    """One object of the model: its form, its content where it has any, and what was written."""

    form: Form
    make: ops.Make
    content: Bits | None = None
    pending: list[tuple[Written, Bits]] = field(default_factory=list)
    history: deque[Written] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    handed_out: list[Expected] = field(default_factory=list)  # since the step began; the last one also from before
    last: Mark = _NEVER


class Model:
    """A correct implementation in numpy, of which only expectations are asked."""

    def __init__(self) -> None:
        self.tracks: dict[str, Track] = {}

    def perform(self, op: ops.Op, *, mark: Mark, bits: Bits | None) -> None:
        """Take note of `op`; `bits` is its payload, which is copied where it is kept."""
        match op:
            case ops.Make():
                self._make(op)
            case ops.Step():
                for track in self.tracks.values():
                    del track.handed_out[:-1]
            case ops.Publish(beyond="value"):
                pass
            case ops.Publish() | ops.CopyToGpu() | ops.Expose():
                self._publish(op.name, mark, op.num_rows)
            case ops.PublishBacked():
                self._publish_backed(op.name, op.num_rows)
            case ops.PublishAll():
                for name in op.names:
                    self._publish_backed(name, None)
            case ops.WriteBacked():
                self._write_backed(op, mark, bits)
            case ops.Stage():
                self._stage(op.name, mark, (op.row, op.start), op.length, bits, keep=op.beyond not in ops.REFUSED)
            case ops.StageElem():
                self._stage(op.name, mark, (op.row, 0), 1, bits, keep=op.beyond not in ops.REFUSED)
            case ops.Apply():
                self._apply(op.name)
            case ops.FusedApply():
                for name in op.tensors:
                    self._apply(name)
            case ops.Clear():
                self.tracks[op.name].pending.clear()

    def forget_past(self) -> None:
        """Nothing is queued: drop what was kept to explain wrong words, so that a long stream's memory stays flat."""
        for track in self.tracks.values():
            track.history.clear()
            del track.handed_out[:-1]

    def expect(self, op: ops.Read) -> Expected:
        """What a reader launched now must see."""
        track = self.tracks[op.name]
        if track.make.what == "staged":
            assert track.content is not None
            num_rows = track.form.length - op.first if op.num_rows is None else op.num_rows
            rows, cols = track.form.extent(num_rows)
            part = track.content[op.first : op.first + rows, :cols].copy()
            return Expected(track.form, num_rows, track.last, part, op.first)
        seen = track.handed_out[-1 - op.back]
        if op.num_rows is None:
            return seen
        rows, cols = track.form.extent(op.num_rows)
        return Expected(seen.form, op.num_rows, seen.mark, None if seen.bits is None else seen.bits[:rows, :cols])

    def _make(self, op: ops.Make) -> None:
        if op.what == "fused":
            return
        track = Track(Form(op.name, op.dtype, op.size, op.fill), op)
        if op.what in ("staged", "backed"):
            track.content = np.zeros(track.form.extent(None), track.form.bits)
        if op.what == "backed":
            track.handed_out.append(
                Expected(track.form, None, track.last, track.content.copy() if track.content is not None else None)
            )
        self.tracks[op.name] = track

    def _publish(self, name: str, mark: Mark, num_rows: int | None) -> None:
        track = self.tracks[name]
        track.last = mark
        track.history.append(Written(mark, (0, 0), track.form.extent(num_rows)))
        track.handed_out.append(Expected(track.form, num_rows, mark))

    def _write_backed(self, op: ops.WriteBacked, mark: Mark, bits: Bits | None) -> None:
        track = self.tracks[op.name]
        assert track.content is not None
        assert bits is not None
        at = (0, op.row) if track.form.flat else (op.row, 0)
        track.last = mark
        track.history.append(Written(mark, at, bits.shape))
        track.content[at[0] : at[0] + bits.shape[0], at[1] : at[1] + bits.shape[1]] = bits

    def collide(self, op: ops.Collide, *, mark: Mark, bits: Bits, accepted: bool) -> None:
        """A stage_write of bits[0, :-1] went well; so did, if it was accepted, the call in its midst of bits[0, -1]."""
        self._stage(op.name, mark, (op.row, 0), op.length, bits[:, :-1], keep=True)
        if accepted:
            self._stage(op.name, mark, (op.elem_row, 0), 1, bits[:, -1:], keep=True)

    def _publish_backed(self, name: str, num_rows: int | None) -> None:
        track = self.tracks[name]
        assert track.content is not None
        rows, cols = track.form.extent(num_rows)
        track.handed_out.append(Expected(track.form, num_rows, track.last, track.content[:rows, :cols].copy()))

    def _stage(
        self, name: str, mark: Mark, place: tuple[int, int], length: int, bits: Bits | None, *, keep: bool
    ) -> None:
        track = self.tracks[name]
        at = (0, place[0] + place[1]) if track.form.flat else (max(0, place[0]), max(0, place[1]))
        written = Written(mark, at, (1, length))
        track.last = mark
        track.history.append(written)
        if keep and length:
            assert bits is not None
            track.pending.append((written, bits.copy()))

    def _apply(self, name: str) -> None:
        track = self.tracks[name]
        assert track.content is not None
        for (_, (row, col), (_, length)), bits in track.pending:
            track.content[row, col : col + length] = bits[0]
        track.pending.clear()
