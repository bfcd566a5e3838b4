"""The staged writes of one tensor: noted on the host, checked when noted, applied together later.

Pure numpy. A call either notes all of its writes or none; the counters move last.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch

from staging.dtypes import carrier
from staging.exact import exact
from staging.packing import Array, Runs, resolve

Places = tuple[Array, Array]
"""Flat offsets int64[n] and lengths int64[n] of n writes."""

_FIRST_WRITES, _FIRST_ELEMENTS = 64, 1024


class WriteLog:
    """Writes to a dense tensor of shape (n,) or (rows, columns), in the order they were staged."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.shape = shape
        self.dtype = dtype
        self.num_writes = 0
        self.num_elements = 0
        self._offsets = np.empty(_FIRST_WRITES, np.int64)
        self._lengths = np.empty(_FIRST_WRITES, np.int64)
        self._contents = np.empty(_FIRST_ELEMENTS, carrier(dtype))

    def __len__(self) -> int:
        return self.num_writes

    @property
    def contents(self) -> Array:
        """All staged values, one write after another; valid until the next call that stages or clears."""
        return self._contents[: self.num_elements]

    def stage(self, row: Any, start: Any, values: Any) -> None:
        """Note one write; an empty one is ignored, wherever it would go."""
        row, start = _index(row, "row"), _index(start, "start")
        array = exact(values, self.dtype)
        if array.ndim != 1:
            raise ValueError(f"values have rank {array.ndim}; one write takes a flat sequence of elements")
        if len(array):
            offset = self._place(row, start, len(array))
            self._note(np.array([offset]), np.array([len(array)]), array)

    def stage_element(self, index: Any, value: Any) -> None:
        """Note one value: element `index` of a 1-D tensor, column 0 of row `index` of a 2-D one."""
        index = _index(index, "index")
        array = exact(value, self.dtype)
        if array.size != 1:
            raise ValueError(f"stage_write_elem takes one value, not {array.size}; use stage_write for more")
        self._note(np.array([self._place(index, 0, 1)]), np.array([1]), array.reshape(1))

    def stage_many(self, rows: Any, starts: Any, values: Any, lengths: Any = None) -> None:
        """Note one write per row, in order; see `StagedWriteTensor.stage_writes`."""
        rows, starts = indices(rows, "rows"), indices(starts, "starts")
        array = exact(values, self.dtype)
        lengths = lengths_of(lengths, array.shape, len(rows))
        if len(starts) == 1:
            starts = np.broadcast_to(starts, rows.shape)
        if len(starts) != len(rows):
            raise ValueError(f"{len(starts)} starts for {len(rows)} rows: give one per write, or one for all")
        self.note(self.check_many(rows, starts, lengths), array.reshape(-1))

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
        self._note(*places, values)

    def clear(self) -> None:
        """Forget everything staged; the buffers stay for the next step."""
        self.num_writes = self.num_elements = 0

    def runs(self) -> Runs:
        """The writes as disjoint runs, the last one of an element winning."""
        return resolve(self._offsets[: self.num_writes], self._lengths[: self.num_writes])

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

    def _note(self, offsets: Array, lengths: Array, values: Array) -> None:
        writes, elements = self.num_writes + len(offsets), self.num_elements + len(values)
        if writes > len(self._offsets):
            self._offsets = _grown(self._offsets, self.num_writes, writes)
            self._lengths = _grown(self._lengths, self.num_writes, writes)
        if elements > len(self._contents):
            self._contents = _grown(self._contents, self.num_elements, elements)
        self._offsets[self.num_writes : writes] = offsets
        self._lengths[self.num_writes : writes] = lengths
        self._contents[self.num_elements : elements] = values
        self.num_writes, self.num_elements = writes, elements


def _grown(array: Array, used: int, needed: int) -> Array:
    grown = np.empty(1 << (needed - 1).bit_length(), array.dtype)
    grown[:used] = array[:used]
    return grown


def _index(value: Any, what: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what}={value!r} of type {type(value).__name__}: give an integer") from None


def indices(values: Any, what: str) -> Array:
    """int64[num_writes] from one number or a flat sequence; raises ValueError where empty or nested."""
    array = exact(values, torch.int64)
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
