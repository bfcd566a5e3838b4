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


class Layout:
    """What packed elements of the same targets have in common: the header, but for the count, and the table."""

    __slots__ = ("head", "itemsize", "keys_at", "num_targets", "span", "table", "width")

    def __init__(self, table: Sequence[int], *, span: int, width: int, itemsize: int) -> None:
        """`table` holds the address and the pitch in bytes of each target in turn."""
        self.table, self.span, self.width, self.itemsize = table, span, width, itemsize
        self.num_targets = len(table) // 2
        self.keys_at = HEADER + len(table)  # in words
        self.head = struct.pack(f"{self.keys_at - 1}q", self.num_targets, span, width, itemsize, 0, 0, 0, *table)

    def nbytes(self, num: int) -> int:
        """Of so many packed elements, up to a whole word."""
        return 8 * (self.keys_at + num) + (num * self.itemsize + 7 & ~7)


class ElementWrites:
    """Host bytes (uint8, whole words, aligned to 8) as the packed elements of one launch; opened anew for each."""

    __slots__ = ("_views", "_words", "layout", "num", "packed", "words")

    layout: Layout

    def __init__(self, host: Array) -> None:
        self.packed: memoryview = host.data
        self._words: Array = host[: len(host) & ~7].view(WORD)
        self.words: memoryview = self._words.data
        """The same memory, word by word."""
        self._views: dict[np.dtype[Any], Array] = {WORD: self._words}
        self.num = 0

    def open(self, num: int, layout: Layout) -> None:
        """Write the header and the table for `num` elements; keys and values follow. The bytes must hold
        `layout.nbytes(num)`."""
        self.num, self.layout = num, layout
        self.words[0] = num
        self.packed[8 : 8 * layout.keys_at] = layout.head

    def fill(self, keys: Array, values: Array) -> None:
        """Write them, int64[num] and [num] of a dtype that is `itemsize` bytes wide."""
        first = self.layout.keys_at
        last = first + self.num
        self._words[first:last] = keys
        view = self._views.get(values.dtype)
        if view is None:
            view = self._views[values.dtype] = self._words.view(values.dtype)
        first = 8 * last // self.layout.itemsize
        view[first : first + self.num] = values

    @property
    def nbytes(self) -> int:
        return 8 * (self.layout.keys_at + self.num) + self.num * self.layout.itemsize

    @property
    def keys(self) -> Array:
        """int64[num]."""
        first = self.layout.keys_at
        return self._words[first : first + self.num]

    @property
    def bits(self) -> Array:
        """Of the values: unsigned[num]."""
        size = self.layout.itemsize
        first = 8 * (self.layout.keys_at + self.num) // size
        return self._words.view(BITS[size])[first : first + self.num]


def packed_in(packed: Array) -> ElementWrites:
    """What packed bytes (uint8) hold, by their header."""
    writes = ElementWrites(packed)
    num, num_targets, span, width, itemsize = writes.words[:DONE_AT].tolist()
    table = writes.words[HEADER : HEADER + 2 * num_targets].tolist()
    writes.num, writes.layout = num, Layout(table, span=span, width=width, itemsize=itemsize)
    return writes


def placed(writes: ElementWrites, addresses: Sequence[int]) -> Iterator[tuple[int, Array, Array]]:
    """Of each target: its number, the elements' flat offsets int64[n] in it, and their bits uint[n], given the
    addresses of the targets."""
    layout = writes.layout
    size, width, span, table = layout.itemsize, layout.width, layout.span, layout.table
    keys, values = writes.keys, writes.bits
    owners = keys // (span * width) if layout.num_targets > 1 else None
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
