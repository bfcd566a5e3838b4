"""Writes of one element each, by far the most frequent, packed so that the device works out where each one goes.

The packed bytes are 64-bit words: a header (see `HEADER`), then per target its address and the bytes from row to row,
then a key for each element, `(target * span + row) * width + column`, then the values. `scatter_elements` is the numpy
reference of the kernel that reads them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

HEADER = 8
"""Words: elements, targets, span, width, bytes of an element, then the address and the value of a word that the kernel
sets when it is done (0: none), and one that is free."""
DONE_AT = 5
WORD = np.dtype(np.int64)

BITS = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
_FIXED = struct.Struct("8q")
_FIXED_AND_ONE = struct.Struct("10q")


class ElementWrites:
    """Host bytes (uint8, whole words, aligned to 8) as the packed elements of one launch; opened anew for each."""

    __slots__ = ("_views", "itemsize", "keys_at", "num", "num_targets", "packed", "span", "values_at", "width")

    def __init__(self, host: Array) -> None:
        self.packed: memoryview = host.data
        self._views: dict[np.dtype[Any], Array] = {WORD: host[: len(host) & ~7].view(WORD)}
        self.open(0, 1, 1, 1, 1)

    def open(self, num: int, num_targets: int, span: int, width: int, itemsize: int) -> None:
        """Make room for `num` elements; the bytes must hold `nbytes_of_elements` as much."""
        self.num, self.num_targets, self.span, self.width, self.itemsize = num, num_targets, span, width, itemsize
        self.keys_at = HEADER + 2 * num_targets
        self.values_at = self.keys_at + num

    @property
    def nbytes(self) -> int:
        return 8 * self.values_at + self.num * self.itemsize

    @property
    def table(self) -> Array:
        """int64[2 * num_targets]: address and pitch of each target."""
        return self._views[WORD][HEADER : self.keys_at]

    @property
    def keys(self) -> Array:
        """int64[num]."""
        return self._views[WORD][self.keys_at : self.values_at]

    def values(self, kind: np.dtype[Any]) -> Array:
        """Of the dtype `kind`, which is `itemsize` bytes wide."""
        view = self._views.get(kind)
        if view is None:
            view = self._views[kind] = self._views[WORD].view(kind)
        first = 8 * self.values_at // self.itemsize
        return view[first : first + self.num]

    def write_header(self) -> None:
        _FIXED.pack_into(
            self.packed, 0, self.num, self.num_targets, self.span, self.width, self.itemsize, 0, 0, 0
        )  # fmt: skip

    def write_header_and_target(self, address: int, pitch: int) -> None:
        """The header, and the table of a single target."""
        _FIXED_AND_ONE.pack_into(
            self.packed, 0, self.num, 1, self.span, self.width, self.itemsize, 0, 0, 0, address, pitch
        )


def nbytes_of_elements(num: int, num_targets: int, itemsize: int) -> int:
    """Of the packed bytes, up to a whole word."""
    return 8 * (HEADER + 2 * num_targets + num) + (num * itemsize + 7 & ~7)


def packed_in(packed: Array) -> ElementWrites:
    """What packed bytes (uint8) hold, by their header."""
    writes = ElementWrites(packed)
    writes.open(*packed[: 8 * DONE_AT].view(WORD).tolist())
    return writes


def placed(writes: ElementWrites, addresses: Sequence[int]) -> Iterator[tuple[int, Array, Array]]:
    """Of each target: its number, the elements' flat offsets int64[n] in it, and their bits uint[n], given the
    addresses of the targets."""
    size, width, span = writes.itemsize, writes.width, writes.span
    keys, values, table = writes.keys, writes.values(BITS[size]), writes.table.tolist()
    owners = keys // (span * width) if writes.num_targets > 1 else None
    for target, address in enumerate(addresses):
        mine: Any = slice(None) if owners is None else np.flatnonzero(owners == target)
        first, pitch = (table[2 * target] - address) // size, table[2 * target + 1] // size
        if pitch == width:  # the keys count on without gaps
            offsets = keys[mine] + (first - target * span * width)
        else:
            rows = keys[mine] // width
            offsets = (rows - target * span) * pitch + (keys[mine] - rows * width) + first
        yield target, offsets, values[mine]


def scatter_elements(writes: ElementWrites, targets: Sequence[Array], addresses: Sequence[int]) -> None:
    """The kernel's reference: put each element into its target; all are flat uint8."""
    for target, offsets, values in placed(writes, addresses):
        targets[target].view(values.dtype)[offsets] = values


def keys_of(places: tuple[Any, ...], shape: tuple[int, ...]) -> Array | None:
    """One int64 key for each of many places in an array of that shape, in C order; None where the indices are not
    int64 arrays of one length, or lie outside, or a place comes twice."""
    length = -1
    for indices in places:
        if indices.__class__ is not np.ndarray or indices.dtype is not WORD or indices.ndim != 1:
            return None
        if len(indices) != length and length >= 0:
            return None
        length = len(indices)
    try:
        keys: Array = np.ravel_multi_index(places, shape)
    except ValueError:
        return None
    return keys if length > 0 and _are_distinct(keys) else None


def _are_distinct(keys: Array) -> bool:
    if b"\0" in (keys[1:] > keys[:-1]).tobytes():
        keys = np.sort(keys)
        return b"\0" not in (keys[1:] > keys[:-1]).tobytes()
    return True
