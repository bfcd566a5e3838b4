"""Payload words: every word says who wrote it, so no copy is stored and a wrong word can be traced.

A word is a mix of (run seed, seat, tensor, step, write, row, offset); `write` counts the staged writes or publishes of
one tensor within one step. The last stage of the mix is a bijection of the offset, so a stray word can be inverted to
where it belongs. An element of 8 bytes is two words; a narrow one is a word's low bits; floats are kept normal and
finite by fixing two bits. A form whose fill is not "words" takes edge values of its type instead, chosen by the words.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rig.extremes import table

Bits = NDArray[Any]  # unsigned integers of the element's size

_M64 = (1 << 64) - 1
_ROW, _OFFSET, _MIX = 0x9E3779B1, 0x85EBCA6B, 0x7FEB352D
_MIX_INVERSE, _OFFSET_INVERSE = pow(_MIX, -1, 1 << 32), pow(_OFFSET, -1, 1 << 32)
_BLOCK = 1 << 15  # words mixed at a time: two buffers of it fit into a core's cache

# name -> item size, (bits cleared, bits set) of the highest word: so the exponent is never that of inf, NaN or 0
_LAYOUT: dict[str, tuple[int, tuple[int, int] | None]] = {
    "int32": (4, None),
    "int64": (8, None),
    "int16": (2, None),
    "int8": (1, None),
    "uint8": (1, None),
    "float32": (4, (0x4000_0000, 0x2000_0000)),
    "float64": (8, (0x4000_0000, 0x2000_0000)),
    "float16": (2, (0x4000, 0x2000)),
    "bfloat16": (2, (0x4000, 0x2000)),
    "bool": (1, (0xFE, 0)),
    "uint16": (2, None),
    "uint32": (4, None),
    "uint64": (8, None),
}


class Mark(NamedTuple):
    """When something was written: the engine's step, and which write of this tensor within it."""

    step: int
    write: int


@dataclass(frozen=True, slots=True)
class Form:
    """A tensor as the rig sees it: name, element type, extent, what fills it; a 1-D tensor is one row."""

    name: str
    dtype: str
    size: int | tuple[int, ...]
    fill: str = "words"

    @property
    def flat(self) -> bool:
        """Whether its first dimension is the only one."""
        return isinstance(self.size, int) or len(self.size) == 1

    @property
    def length(self) -> int:
        """Entries of the first dimension: what a publish calls rows."""
        return self.size if isinstance(self.size, int) else self.size[0]

    @property
    def cols(self) -> int:
        """Elements per row; of a 1-D tensor, all of them."""
        return self.length if isinstance(self.size, int) or self.flat else math.prod(self.size[1:])

    @property
    def rows(self) -> int:
        return 1 if self.flat else self.length

    @property
    def itemsize(self) -> int:
        return _LAYOUT[self.dtype][0]

    @property
    def bits(self) -> np.dtype[Any]:
        """The unsigned numpy type of one element's bits."""
        return np.dtype(f"u{self.itemsize}")

    @property
    def value_bits(self) -> int:
        """How many bits of an element tell who wrote it."""
        if self.fill != "words":
            return int(math.log2(len(table(self.dtype, self.fill))))
        fixed = _LAYOUT[self.dtype][1]
        return 1 if self.dtype == "bool" else self.itemsize * 8 - (2 if fixed else 0)

    def extent(self, num_rows: int | None) -> tuple[int, int]:
        """(rows, columns) of the first `num_rows` entries, by default of all."""
        count = self.length if num_rows is None else num_rows
        return (1, count) if self.flat else (count, self.cols)

    def shape(self, num_rows: int | None) -> tuple[int, ...]:
        """The shape that a target gives to the first `num_rows` entries."""
        count = self.length if num_rows is None else num_rows
        return (count,) if isinstance(self.size, int) else (count, *self.size[1:])


class Payload:
    """All payloads of one run on one seat. Not for two threads: it owns scratch memory."""

    def __init__(self, *, seed: int, seat: str) -> None:
        digest = hashlib.blake2b(f"{seed}/{seat}".encode(), digest_size=8).digest()
        self._seed = int.from_bytes(digest, "little")
        self._scratch = np.empty(_BLOCK, np.uint32)

    def block(
        self, form: Form, mark: Mark, *, at: tuple[int, int] = (0, 0), extent: tuple[int, int], out: Bits | None = None
    ) -> Bits:
        """The elements [rows, columns) of `extent`, from row and column `at` on, as bits; into `out` if given."""
        if form.fill != "words":
            return _chosen(form, self.block(_picker(form), mark, at=at, extent=extent), out)
        (row, col), (rows, cols) = at, extent
        per = max(1, form.itemsize // 4)
        bits = np.empty(extent, form.bits) if out is None else out
        words = bits.view(np.uint32) if form.itemsize >= 4 else np.empty(extent, np.uint32)
        keys = self._keys(form, mark, np.arange(row, row + rows, dtype=np.uint32))[:, None]
        ramp = _ramp(per * (col + cols))[None, per * col :]
        width = max(1, min(words.shape[1], _BLOCK))
        height = max(1, _BLOCK // width)
        for top in range(0, rows, height):
            for left in range(0, words.shape[1], width):
                part = words[top : top + height, left : left + width]
                np.add(keys[top : top + height], ramp[:, left : left + width], out=part)
                _mix(part, self._scratch[: part.size].reshape(part.shape))
        _settle_bits(form, words)
        if form.itemsize < 4:
            np.copyto(bits, words, casting="unsafe")
        return bits

    def at(self, form: Form, mark: Mark, rows: NDArray[np.int64], cols: NDArray[np.int64]) -> Bits:
        """The elements at single positions; `block` for scattered places."""
        if form.fill != "words":
            return _chosen(form, self.at(_picker(form), mark, rows, cols), None)
        per = max(1, form.itemsize // 4)
        keys = self._keys(form, mark, rows.astype(np.uint32))[:, None]
        places = cols.astype(np.uint32)[:, None] * np.uint32(per) + np.arange(per, dtype=np.uint32)
        words: NDArray[np.uint32] = np.ascontiguousarray(keys + places * np.uint32(_OFFSET))
        _mix(words, np.empty_like(words))
        _settle_bits(form, words)
        return words.view(form.bits)[:, 0] if per > 1 else words[:, 0].astype(form.bits)

    def origins(
        self, form: Form, mark: Mark, element: int, *, rows: NDArray[np.int64], width: int
    ) -> list[tuple[int, int]]:
        """The (row, column < width) among `rows` where `element` stands if `mark` wrote it; empty for narrow types."""
        if form.itemsize < 4 or form.fill != "words":
            return []
        low = element & 0xFFFFFFFF
        words = [low]
        if form.dtype == "float32":  # two bits were fixed: try what they may have been
            words = [(low & 0x9FFF_FFFF) | high << 29 for high in range(4)]
        per = form.itemsize // 4
        keys = self._keys(form, mark, rows.astype(np.uint32))
        found = []
        for word in words:
            places = (np.uint32(_unmix(word)) - keys) * np.uint32(_OFFSET_INVERSE)
            for hit in np.flatnonzero((places < width * per) & (places % np.uint32(per) == 0)):
                found.append((int(rows[hit]), int(places[hit]) // per))  # noqa: PERF401
        return found

    def _keys(self, form: Form, mark: Mark, rows: NDArray[np.uint32]) -> NDArray[np.uint32]:
        state = self._seed ^ _name_key(form.name)
        for part in mark:
            state = _splitmix64(state + part)
        keys = rows * np.uint32(_ROW) + np.uint32(state & 0xFFFFFFFF)
        for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
            keys ^= keys >> np.uint32(shift)
            keys *= np.uint32(factor)
        return keys ^ (keys >> np.uint32(15))


def _picker(form: Form) -> Form:
    """Whose words choose the edge values of a form."""
    return Form(form.name, "uint32", form.size)


def _chosen(form: Form, picks: Bits, out: Bits | None) -> Bits:
    values = table(form.dtype, form.fill)
    bits: Bits = np.take(values, picks % np.uint32(len(values)), out=out)
    return bits


def _mix(words: NDArray[np.uint32], scratch: NDArray[np.uint32]) -> None:
    np.right_shift(words, 16, out=scratch)
    np.bitwise_xor(words, scratch, out=words)
    np.multiply(words, np.uint32(_MIX), out=words)
    np.right_shift(words, 15, out=scratch)
    np.bitwise_xor(words, scratch, out=words)


def _unmix(word: int) -> int:
    word ^= (word >> 15) ^ (word >> 30)
    word = word * _MIX_INVERSE & 0xFFFFFFFF
    return word ^ (word >> 16)


def _settle_bits(form: Form, words: NDArray[np.uint32]) -> None:
    fixed = _LAYOUT[form.dtype][1]
    if fixed is not None:
        high = words[:, 1::2] if form.itemsize == 8 else words
        np.bitwise_and(high, np.uint32(~fixed[0] & 0xFFFFFFFF), out=high)
        np.bitwise_or(high, np.uint32(fixed[1]), out=high)


@lru_cache(maxsize=16)
def _ramp(num_words: int) -> NDArray[np.uint32]:
    return np.arange(num_words, dtype=np.uint32) * np.uint32(_OFFSET)


@lru_cache(maxsize=4096)
def _name_key(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def _splitmix64(state: int) -> int:
    state = (state + 0x9E3779B97F4A7C15) & _M64
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _M64
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _M64
    return state ^ (state >> 31)
