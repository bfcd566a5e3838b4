"""The staged writes of one tensor: noted on the host, checked when noted, applied together later.

Pure Python and numpy. A call either notes all of its writes or none. Single numbers wait in a dict, which keeps the
last one of each place; other small contents in an array; those of `STASH_NBYTES` and more go straight into memory that
the device will read, where the log is given a stash. A batch of elements may lie packed in such memory as a whole.
"""

from __future__ import annotations

import operator
import struct
from array import array
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch

from staging.dtypes import carrier
from staging.exact import exact
from staging.packing import Array

STASH_NBYTES = 1 << 15
Stash = Callable[[Array], Any]
"""Puts a flat array into a buffer of the device's and returns the buffer."""

Places = tuple[Array, Array | None]
"""Flat offsets int64[n] and lengths int64[n] of n writes; None for one element each."""

_ONE = array("q", [1])

_SIGNED, _UNSIGNED = {1: "b", 2: "h", 4: "i", 8: "q"}, {1: "B", 2: "H", 4: "I", 8: "Q"}


class Batch(Protocol):
    """Elements of one or more logs, packed already."""

    def spill(self) -> None:
        """Note them in their logs, which have no other writes, and let the packed ones go."""


class WriteLog:
    """Writes to a dense tensor of shape (n,) or (rows, columns), in the order they were staged.

    A `batch` is there alone; `elements` come after what the arrays hold. `idle` holds something while no call on the
    tensor is in progress and no batch is there: then the short ways may be taken.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, *, stash: Stash | None = None) -> None:
        self.shape = shape
        self.dtype = dtype
        self.itemsize = carrier(dtype).itemsize
        self.code = carrier(dtype).char  # as the struct module knows it too
        codes = _SIGNED if carrier(dtype).kind == "i" else _UNSIGNED
        self.contents: array[int] = array(codes[self.itemsize])  # of floats and bools, the bits
        self.offsets: array[int] = array("q")
        self.lengths: array[int] = array("q")
        self._stash = stash
        self.stashed: list[tuple[int, Any]] = []
        self.elements: dict[int, Any] = {}  # by flat offset
        self.batch: Batch | None = None
        self.idle: list[None] = [None]

    def __bool__(self) -> bool:
        """Whether anything is staged."""
        return self.batch is not None or bool(self.elements) or bool(self.offsets)

    def is_one_stash(self) -> bool:
        """Whether there is but one write, and its contents are stashed."""
        return len(self.offsets) == len(self.stashed) == 1 and not self.elements and self.batch is None

    def stage(self, row: Any, start: Any, values: Any) -> None:
        """Note one write; an empty one is ignored, wherever it would go."""
        row, start = _index(row, "row"), _index(start, "start")
        converted = exact(values, self.dtype)
        if converted.ndim != 1:
            raise ValueError(f"values have rank {converted.ndim}; one write takes a flat sequence of elements")
        if len(converted):
            self._note_one(self._place(row, start, len(converted)), converted)

    def stage_element(self, index: Any, value: Any) -> None:
        """Note one value: element `index` of a 1-D tensor, column 0 of row `index` of a 2-D one."""
        index = _index(index, "index")
        converted = exact(value, self.dtype)
        if converted.size != 1:
            raise ValueError(f"stage_write_elem takes one value, not {converted.size}; use stage_write for more")
        self._note_one(self._place(index, 0, 1), converted.reshape(1))

    def stage_many(self, rows: Array, starts: Any, values: Array, lengths: Any = None) -> None:
        """Note one write per row, in order, of converted values; see `StagedWriteTensor.stage_writes`."""
        starts = indices(starts, "starts")
        lengths = lengths_of(lengths, values.shape, len(rows))
        if len(starts) == 1:
            starts = np.broadcast_to(starts, rows.shape)
        if len(starts) != len(rows):
            raise ValueError(f"{len(starts)} starts for {len(rows)} rows: give one per write, or one for all")
        self.note(self.check_many(rows, starts, lengths), values.reshape(-1))

    def check_many(self, rows: Array, starts: Array, lengths: Array) -> Places:
        """Where the writes go, checked but not noted yet; the first bad one is named. Lengths are >= 0."""
        size, columns = self.shape[0], self.shape[-1]
        room = columns - starts if len(self.shape) == 2 else size - rows - starts
        inside = (rows >= 0) & (rows < size) & (starts >= 0) & (starts <= columns)  # the rest may have wrapped
        bad = ~inside | (lengths > room)
        if bad.any():
            which = int(np.argmax(bad))
            try:
                self._place(int(rows[which]), int(starts[which]), int(lengths[which]))
            except IndexError as error:
                raise IndexError(f"write {which}: {error}") from None
        offsets = rows + starts if len(self.shape) == 1 else rows * columns + starts
        kept = lengths > 0
        return (offsets, lengths) if kept.all() else (offsets[kept], lengths[kept])

    def note(self, places: Places, values: Array) -> None:
        """Note writes that `check_many` passed, with their converted values one after another."""
        offsets, lengths = places
        self.gather()
        self.contents.frombytes(_bytes(values))
        self.offsets.frombytes(_bytes(offsets))
        if lengths is None:
            self.lengths.extend(_ONE * len(offsets))
        else:
            self.lengths.frombytes(_bytes(lengths))

    def hold(self, held: bool) -> None:
        """Close the short ways for a call on the tensor, or open them after it."""
        if held:
            self.idle.clear()
        elif self.batch is None and not self.idle:
            self.idle.append(None)

    def clear(self) -> None:
        """Forget everything staged but a batch; the arrays keep their memory for the next step."""
        self.elements.clear()
        if self.offsets:
            del self.contents[:], self.offsets[:], self.lengths[:]
            self.stashed.clear()

    def gather(self) -> None:
        """Bring everything into the arrays, in the order it was staged."""
        if self.batch is not None:
            self.batch.spill()
        if self.elements:
            count = len(self.elements)
            self.offsets.fromlist(list(self.elements))
            self.lengths.extend(_ONE * count)
            self.contents.frombytes(struct.pack(f"{count}{self.code}", *self.elements.values()))
            self.elements.clear()

    def _note_one(self, offset: int, values: Array) -> None:
        self.gather()
        if self._stash is not None and values.nbytes >= STASH_NBYTES:
            self.stashed.append((len(self.offsets), self._stash(values)))
        else:
            self.contents.frombytes(_bytes(values))
        self.offsets.append(offset)
        self.lengths.append(len(values))

    def _place(self, row: int, start: int, length: int) -> int:
        """The flat offset of a write, checked: inside its row, or inside a 1-D tensor from row + start on."""
        if len(self.shape) == 1:
            size = self.shape[0]
            _within("row", row, size)
            if start < 0 or row + start + length > size:
                raise IndexError(f"row {row} + start {start} + length {length} passes the size {size}")
            return row + start
        num_rows, num_columns = self.shape
        _within("row", row, num_rows)
        if start < 0 or start + length > num_columns:
            raise IndexError(f"start {start} + length {length} passes the row's {num_columns} columns (row {row})")
        return row * num_columns + start


def _index(value: Any, what: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what}={value!r} of type {type(value).__name__}: give an integer") from None


def indices(values: Any, what: str) -> Array:
    """int64[num_writes] from one number or a flat sequence; raises ValueError where empty or nested."""
    try:
        array = exact(values, torch.int64)
    except (TypeError, OverflowError) as error:
        raise type(error)(f"{what}: {error}") from None
    if array.ndim == 1 and len(array):
        return array
    if array.ndim > 1:
        raise ValueError(f"{what} have rank {array.ndim}; give a flat sequence, one entry per write")
    if array.size == 0:
        raise ValueError(f"{what} are empty: a batch stages at least one write")
    return array.reshape(-1)


def lengths_of(lengths: Any, shape: tuple[int, ...], num_writes: int) -> Array:
    """One length per write of values of that shape; without `lengths` they split evenly: (writes,) or (writes, n)."""
    if lengths is None:
        if len(shape) not in (1, 2) or shape[0] != num_writes:
            raise ValueError(
                f"values of shape {shape} for {num_writes} writes: give lengths, one value per write, "
                "or one row of values per write"
            )
        return np.full(num_writes, 1 if len(shape) == 1 else shape[1], np.int64)
    array = indices(lengths, "lengths")
    if len(shape) != 1:
        raise ValueError(f"values have rank {len(shape)}; with lengths they are one flat sequence")
    if len(array) != num_writes:
        raise ValueError(f"{len(array)} lengths for {num_writes} writes: give one per write")
    if int(array.min()) < 0:
        raise ValueError(f"write {int(array.argmin())}: length {int(array.min())} is negative")
    if int(array.max()) > shape[0] or int(array.sum()) != shape[0]:
        raise ValueError(f"lengths sum to {sum(array.tolist())}, but there are {shape[0]} values")
    return array


def _within(what: str, value: int, limit: int) -> None:
    if not 0 <= value < limit:
        raise IndexError(f"{what} {value} is outside 0 to {limit - 1} (the tensor has {limit} rows)")


def _bytes(values: Array) -> memoryview:
    return memoryview(np.ascontiguousarray(values).data).cast("B")
