"""Staged writes of many tensors packed for one launch, as runs that do not overlap.

The packed bytes hold the contents first, then a header, int64[3, num_runs]: destination address, source address, and
16 * elements + element size. `scatter` is the numpy reference of the kernel that reads them.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

CHUNK = 1024
"""Elements one program of the kernel moves at a time."""

_FEW = 32  # runs that are packed sooner one by one than by numpy
_TARGET_SHIFT = 48  # a sort key is the byte in a target, and the target above it

Run = tuple[int, int, int, int, int, int]
"""Index of the target, first byte in it, index of the buffer (0: the packed one, then the stashes), first byte in that,
bytes, and bytes of an element."""


class Log(Protocol):
    """What `pack` takes of the staged writes of one tensor, in the order they were staged."""

    itemsize: int

    @property
    def contents(self) -> array[int]:
        """The values of the writes that lie in no stash, one after another."""

    @property
    def offsets(self) -> array[int]:
        """Flat offsets of the writes, in elements; code "q"."""

    @property
    def lengths(self) -> array[int]:
        """Their elements, none of them 0; code "q"."""

    @property
    def stashed(self) -> Sequence[tuple[int, Any]]:
        """Writes whose contents already lie in a buffer of their own: (which write, buffer)."""


@dataclass(slots=True, frozen=True, eq=False)
class PackedWrites:
    """What one launch moves."""

    runs: list[Run] | Array  # int64[6, num_runs], each column a run
    contents: tuple[array[int], ...]  # what the packed buffer begins with
    stashes: tuple[Any, ...]
    header_at: int  # first byte of the header in the packed buffer

    def __len__(self) -> int:
        return len(self.runs) if isinstance(self.runs, list) else self.runs.shape[1]

    @property
    def nbytes(self) -> int:
        """Of the packed buffer."""
        return self.header_at + 24 * len(self)

    @property
    def num_elements_max(self) -> int:
        """Of the longest run."""
        if isinstance(self.runs, list):
            return max(run[4] // run[5] for run in self.runs)
        return int((self.runs[4] // self.runs[5]).max())

    def write(self, out: Array, *, targets: Sequence[int], packed: int, stashes: Sequence[int]) -> None:
        """Fill `out` (uint8[nbytes]), given the device addresses of targets, packed buffer and stashes."""
        view, start = out.data, 0
        for contents in self.contents:
            stop = start + len(contents) * contents.itemsize
            view[start:stop] = memoryview(contents).cast("B")
            start = stop
        buffers, runs = (packed, *stashes), self.runs
        if isinstance(runs, list):
            words = [targets[run[0]] + run[1] for run in runs]
            words += [buffers[run[2]] + run[3] for run in runs]
            words += [run[4] // run[5] * 16 + run[5] for run in runs]
            struct.pack_into(f"{len(words)}q", view, self.header_at, *words)
            return
        header = out[self.header_at :].view(np.int64).reshape(3, len(self))
        np.add(runs[1], np.array(targets, np.int64)[runs[0]], out=header[0])
        np.add(runs[3], np.array(buffers, np.int64)[runs[2]], out=header[1])
        header[2] = runs[4] // runs[5] * 16 + runs[5]

    def columns(self) -> Iterable[Run]:
        """The runs, one by one."""
        return self.runs if isinstance(self.runs, list) else zip(*self.runs.tolist(), strict=True)


def pack(logs: Sequence[Log]) -> PackedWrites:
    """One launch for all writes of `logs`; where writes of a tensor overlap, the last one wins."""
    order = sorted(range(len(logs)), key=lambda index: -logs[index].itemsize)  # so contents need no padding
    ordered = [logs[index] for index in order]
    counts = [len(log.offsets) for log in ordered]
    runs: list[Run] | Array | None = _few(order, ordered) if sum(counts) <= _FEW else None
    contents = tuple(log.contents for log in ordered)
    return PackedWrites(
        runs=_many(order, ordered, counts) if runs is None else runs,
        contents=contents,
        stashes=tuple(stash for log in ordered for _, stash in log.stashed),
        header_at=(sum(len(part) * part.itemsize for part in contents) + 15) & ~15,
    )


def _few(order: Sequence[int], logs: Sequence[Log]) -> list[Run] | None:
    """The runs of a few writes; None where some overlap."""
    runs: list[Run] = []
    source = buffer = 0
    for target, log in zip(order, logs, strict=True):
        size, stashed = log.itemsize, {which for which, _ in log.stashed}
        for which, (offset, length) in enumerate(zip(log.offsets, log.lengths, strict=True)):
            nbytes = length * size
            if which in stashed:
                buffer += 1
                runs.append((target, offset * size, buffer, 0, nbytes, size))
            else:
                runs.append((target, offset * size, 0, source, nbytes, size))
                source += nbytes
    runs.sort()
    for before, after in pairwise(runs):
        if before[0] == after[0] and before[1] + before[4] > after[1]:
            return None
    return runs


def _many(order: Sequence[int], logs: Sequence[Log], counts: Sequence[int]) -> Array:
    stashed = [first + which for first, log in _starts(counts, logs) for which, _ in log.stashed]
    runs: Any = np.empty((6, sum(counts)), np.int64)
    runs[0] = np.repeat(order, counts)
    runs[5] = np.repeat([log.itemsize for log in logs], counts)
    np.multiply(_joined([log.offsets for log in logs]), runs[5], out=runs[1])
    np.multiply(_joined([log.lengths for log in logs]), runs[5], out=runs[4])
    inside = runs[4].copy()
    inside[stashed] = 0
    runs[2] = 0
    np.subtract(np.cumsum(inside), inside, out=runs[3])
    for number, which in enumerate(stashed, 1):
        runs[2, which], runs[3, which] = number, 0
    return _resolved(runs)


def _starts(counts: Sequence[int], logs: Sequence[Log]) -> list[tuple[int, Log]]:
    first, starts = 0, []
    for count, log in zip(counts, logs, strict=True):
        starts.append((first, log))
        first += count
    return starts


def _joined(columns: Sequence[array[int]]) -> Array:
    if len(columns) == 1:
        return np.array(columns[0])
    return np.frombuffer(b"".join(columns), np.int64)


def _resolved(writes: Array) -> Array:
    """The writes as disjoint runs, the last write of a byte winning. Rows as a Run's."""
    keys = (writes[0] << _TARGET_SHIFT) + writes[1]
    ends = keys + writes[4]
    if bool((keys[1:] >= ends[:-1]).all()):
        return writes
    order = np.argsort(keys, kind="stable")
    if bool((keys[order[1:]] >= ends[order[:-1]]).all()):
        return writes[:, order]
    return _painted(writes, keys, ends)


def _painted(writes: Array, keys: Array, ends: Array) -> Array:
    edges = np.unique(np.concatenate([keys, ends]))
    owners = np.full(len(edges) - 1, -1, np.int64)
    first, last = np.searchsorted(edges, keys), np.searchsorted(edges, ends)
    for write, (low, high) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        owners[low:high] = write
    begins = np.flatnonzero(np.diff(owners, prepend=-2))  # where another write takes over
    stops = np.append(begins[1:], len(owners))
    kept = owners[begins] >= 0
    begins, stops = begins[kept], stops[kept]
    winners = owners[begins]
    runs = writes[:, winners]
    skipped = edges[begins] - keys[winners]
    runs[1] += skipped
    runs[3] += skipped
    runs[4] = edges[stops] - edges[begins]
    return runs


def scatter(buffers: Sequence[Array], writes: PackedWrites, targets: Sequence[Array]) -> None:
    """The kernel's reference: move each run from its buffer (the packed one, then the stashes) into its target; all
    are flat uint8."""
    for target, offset, buffer, source, count, _ in writes.columns():
        targets[target][offset : offset + count] = buffers[buffer][source : source + count]
