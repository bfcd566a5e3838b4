"""Where wrong words come from: matches sampled bits against what was written, same tensor and near steps first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rig.model import Track, Written
from rig.words import Bits, Form, Mark, Payload

POISON = 0xF7EE_F7EE  # what the rig fills freed pinned memory with
_ENOUGH_BITS = 48  # agreement that is no chance; two 32-bit words, floats included, have at least 60
_MARKS_MAX = 64  # writes tried at shifted places, per tensor
_NEARBY = [(row, col) for row in (0, -1, 1) for col in (0, -1, 1, -2, 2, -3, 3, -1024, 1024, -1023, 1023) if row or col]


class Origin(NamedTuple):
    """Who wrote a word: tensor, mark, and how far from its own place it was found."""

    name: str
    mark: Mark
    shift: tuple[int, int] = (0, 0)


ZEROS = Origin("", Mark(0, -1))
FREED = Origin("<freed>", Mark(0, -1))


@dataclass(slots=True)
class Sample:
    """Elements of one read that are to be explained: their places and bits."""

    rows: NDArray[np.int64]
    cols: NDArray[np.int64]
    bits: Bits

    def __len__(self) -> int:
        return len(self.bits)


def trace(
    sample: Sample, *, form: Form, step: int, tracks: Mapping[str, Track], payload: Payload
) -> list[Origin | None]:
    """The origin of each sampled element, or None where no write explains it."""
    search = _Search(sample, step, payload)
    search.constant(POISON, FREED)
    own = tracks[form.name]
    search.in_place(form, own.history)
    search.constant(0, ZEROS)
    search.shifted(form, own.history)
    for name, other in sorted(tracks.items()):
        if name != form.name and other.form.itemsize == form.itemsize:
            search.in_place(other.form, other.history)
            search.shifted(other.form, other.history)
    return search.origins


class _Search:
    def __init__(self, sample: Sample, step: int, payload: Payload) -> None:
        self.sample, self.step, self.payload = sample, step, payload
        self.origins: list[Origin | None] = [None] * len(sample)
        self.open: NDArray[np.bool_] = np.ones(len(sample), dtype=bool)

    def constant(self, word: int, origin: Origin) -> None:
        """Elements made of one constant word (its low bits where they are narrow)."""
        itemsize = self.sample.bits.dtype.itemsize
        value = (word << 32 | word) if itemsize == 8 else word & ((1 << 8 * itemsize) - 1)
        hits = self.open & (self.sample.bits == value)
        if _convinces(int(hits.sum()), int(self.open.sum()), 8 * itemsize):
            self._close(hits, origin)

    def in_place(self, form: Form, history: Sequence[Written]) -> None:
        """Words of another moment at their own place."""
        writes = self._near(history)
        if not writes or not self.open.any():
            return
        rows, cols = self.sample.rows, self.sample.cols
        spans = np.array([(*w.at, *w.extent) for w in writes], dtype=np.int64)
        inside = (rows >= spans[:, :1]) & (rows < spans[:, :1] + spans[:, 2:3])
        inside &= (cols >= spans[:, 1:2]) & (cols < spans[:, 1:2] + spans[:, 3:])
        for index in np.flatnonzero((inside & self.open).any(axis=1)):
            places = np.flatnonzero(inside[index] & self.open)
            if len(places):
                mark = writes[int(index)].mark
                agree = self.payload.at(form, mark, rows[places], cols[places]) == self.sample.bits[places]
                wide = form.value_bits >= 30  # one such word is a strong hint already; the verdict asks for two
                if (wide and agree.any()) or _convinces(int(agree.sum()), len(places), form.value_bits):
                    self._close(places[agree], Origin(form.name, mark))

    def shifted(self, form: Form, history: Sequence[Written]) -> None:
        """Words at a place that is not theirs: one shift must explain at least two of them."""
        for written in self._near(history)[:_MARKS_MAX]:
            for shift in self._shifts(form, written):
                places = np.flatnonzero(self.open)
                rows, cols = self.sample.rows[places] + shift[0], self.sample.cols[places] + shift[1]
                (row, col), (num_rows, num_cols) = written.at, written.extent
                inside = (rows >= row) & (rows < row + num_rows) & (cols >= col) & (cols < col + num_cols)
                places, rows, cols = places[inside], rows[inside], cols[inside]
                if len(places):
                    agree = self.payload.at(form, written.mark, rows, cols) == self.sample.bits[places]
                    if _convinces(int(agree.sum()), len(places), form.value_bits):
                        self._close(places[agree], Origin(form.name, written.mark, (-shift[0], -shift[1])))

    def _shifts(self, form: Form, written: Written) -> list[tuple[int, int]]:
        if not self.open.any():
            return []
        if form.itemsize < 4:
            return _NEARBY
        (row, col), (num_rows, num_cols) = written.at, written.extent
        rows = np.arange(row, row + num_rows, dtype=np.int64)
        shifts: dict[tuple[int, int], None] = {}
        for index in np.flatnonzero(self.open)[:8]:
            element = int(self.sample.bits[index])
            for from_row, from_col in self.payload.origins(
                form, written.mark, element, rows=rows, width=col + num_cols
            ):
                shifts[from_row - int(self.sample.rows[index]), from_col - int(self.sample.cols[index])] = None
        return list(shifts)

    def _near(self, history: Sequence[Written]) -> list[Written]:
        return sorted(history, key=lambda w: (abs(w.mark.step - self.step), w.mark))

    def _close(self, places: NDArray[Any], origin: Origin) -> None:
        for place in np.flatnonzero(places) if places.dtype == bool else places:
            self.origins[int(place)] = origin
            self.open[int(place)] = False


def _convinces(num_agree: int, num_tried: int, value_bits: int) -> bool:
    """Whether agreement is no chance: at least two words and enough bits; of narrow types nearly all elements."""
    num_words = num_agree * max(1, value_bits // 30)
    if num_words < 2 or num_agree * value_bits < _ENOUGH_BITS:
        return False
    return value_bits >= 30 or num_agree >= 0.9 * num_tried
