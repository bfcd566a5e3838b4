"""Writes of one element each, by far the most frequent, packed so that the device works out where each one goes.

The packed bytes are 64-bit words: a header (see `HEADER`), then per target its address and the bytes from row to row,
then a key for each element, `target * span + row`, then where asked for a column for each, then the values.
`scatter_elements` is the numpy reference of the kernel that reads them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

HEADER = 8
"""Words: elements, targets, span, bytes of an element, whether there are columns, then the address and the value of a
word that the kernel sets when it is done (0: none), and one that is free."""
DONE_AT = 5
WORD = np.dtype(np.int64)

_FIXED = struct.Struct("8q")
_FIXED_AND_ONE = struct.Struct("10q")


class ElementWrites:
    """Host bytes (uint8, whole words, aligned to 8) as the packed elements of one launch; opened anew for each."""

    __slots__ = ("_views", "has_columns", "itemsize", "keys_at", "num", "num_targets", "packed", "span", "values_at")

    def __init__(self, host: Array) -> None:
        self.packed: memoryview = host.data
        self._views: dict[np.dtype[Any], Array] = {WORD: host[: len(host) & ~7].view(WORD)}
        self.open(0, 1, 1, 1)

    def open(self, num: int, num_targets: int, span: int, itemsize: int, *, has_columns: bool = False) -> None:
        """Make room for `num` elements; the bytes must hold `nbytes_of` as much."""
        self.num, self.num_targets, self.span, self.itemsize, self.has_columns = (
            num, num_targets, span, itemsize, has_columns
        )  # fmt: skip
        self.keys_at = HEADER + 2 * num_targets
        self.values_at = self.keys_at + (num << has_columns)

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
        return self._views[WORD][self.keys_at : self.keys_at + self.num]

    @property
    def columns(self) -> Array:
        """int64[num], where there are columns."""
        return self._views[WORD][self.keys_at + self.num : self.values_at]

    def values(self, kind: np.dtype[Any]) -> Array:
        """Of the dtype `kind`, which is `itemsize` bytes wide."""
        view = self._views.get(kind)
        if view is None:
            view = self._views[kind] = self._views[WORD].view(kind)
        first = 8 * self.values_at // self.itemsize
        return view[first : first + self.num]

    def write_header(self) -> None:
        _FIXED.pack_into(
            self.packed, 0, self.num, self.num_targets, self.span, self.itemsize, self.has_columns, 0, 0, 0
        )

    def write_header_and_target(self, address: int, pitch: int) -> None:
        """The header, and the table of a single target."""
        _FIXED_AND_ONE.pack_into(
            self.packed, 0, self.num, 1, self.span, self.itemsize, self.has_columns, 0, 0, 0, address, pitch
        )


def nbytes_of_elements(num: int, num_targets: int, itemsize: int, *, has_columns: bool = False) -> int:
    """Of the packed bytes, up to a whole word."""
    return 8 * (HEADER + 2 * num_targets + (num << has_columns)) + (num * itemsize + 7 & ~7)


def placed(packed: Array, addresses: Sequence[int]) -> Iterator[tuple[int, Array, Array]]:
    """Of each target: its number, the elements' flat offsets int64[n] in it, and their bits uint[n]; `packed` is
    uint8, `addresses` those of the targets."""
    words = packed[: len(packed) & ~7].view(WORD)
    num, num_targets, span, itemsize, has_columns = words[:DONE_AT].tolist()
    keys_at = HEADER + 2 * num_targets
    values_at = keys_at + (num << has_columns)
    table = words[HEADER:keys_at].reshape(num_targets, 2).tolist()
    keys = words[keys_at : keys_at + num]
    columns = words[keys_at + num : values_at] if has_columns else None
    values = packed[8 * values_at : 8 * values_at + num * itemsize].view(f"u{itemsize}")
    owners = keys // span if num_targets > 1 else None
    for target, ((base, pitch), address) in enumerate(zip(table, addresses, strict=True)):
        mine: Any = slice(None) if owners is None else owners == target
        offsets = (keys[mine] - target * span) * (pitch // itemsize) + (base - address) // itemsize
        yield target, offsets if columns is None else offsets + columns[mine], values[mine]


def scatter_elements(packed: Array, targets: Sequence[Array]) -> None:
    """The kernel's reference: put each element into its target; all are flat uint8."""
    for target, offsets, values in placed(packed, [array.ctypes.data for array in targets]):
        targets[target].view(values.dtype)[offsets] = values


def are_distinct(keys: Array) -> tuple[int, int] | None:
    """The least and the greatest of int64[n] keys, n >= 1; None where one comes twice."""
    if b"\0" in (keys[1:] > keys[:-1]).tobytes():
        keys = np.sort(keys)
        if b"\0" in (keys[1:] > keys[:-1]).tobytes():
            return None
    return keys.item(0), keys.item(-1)
