"""Staged writes of many tensors packed for one launch: overlap resolved, long runs cut into chunks.

The packed bytes hold the contents first, then a header, int64[3, num_chunks]: destination address, source address, and
16 * elements + element size. `scatter` is the numpy reference of the kernel that reads them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

CHUNK = 1024
"""Elements one program of the kernel moves at most."""

_TARGET_SHIFT = 48  # a sort key is the byte in a target, and the target above it


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
    """What one launch moves, chunk by chunk; each column is int64[num_chunks], or one number for all."""

    targets: Array | int  # index into the list of targets
    offsets: Array  # first byte in the target
    buffers: Array | int  # index into `stashes` plus 1; 0 is the packed buffer itself
    sources: Array  # first byte in the buffer
    lengths: Array | int  # elements
    itemsizes: Array | int  # bytes of an element
    contents: tuple[array[int], ...]  # what the packed buffer begins with
    stashes: tuple[Any, ...]
    header_at: int  # first byte of the header in the packed buffer

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def nbytes(self) -> int:
        """Of the packed buffer."""
        return self.header_at + 24 * len(self)

    def write(self, out: Array, *, targets: Sequence[int], packed: int, stashes: Sequence[int]) -> None:
        """Fill `out` (uint8[nbytes]), given the device addresses of targets, packed buffer and stashes."""
        view, start = out.data, 0
        for contents in self.contents:
            stop = start + len(contents) * contents.itemsize
            view[start:stop] = memoryview(contents).cast("B")
            start = stop
        header = out[self.header_at :].view(np.int64).reshape(3, len(self))
        np.add(self.offsets, _picked(targets, self.targets), out=header[0])
        np.add(self.sources, _picked((packed, *stashes), self.buffers), out=header[1])
        header[2] = self.lengths * 16 + self.itemsizes

    def columns(self) -> list[list[int]]:
        """Targets, offsets, buffers, sources and bytes as lists, one number per chunk."""
        nbytes = self.lengths * self.itemsizes
        full = np.broadcast_arrays(self.targets, self.offsets, self.buffers, self.sources, nbytes)
        return [column.tolist() for column in full]


def pack(logs: Sequence[Log]) -> PackedWrites:
    """One launch for all writes of `logs`; where writes of a tensor overlap, the last one wins."""
    order = sorted(range(len(logs)), key=lambda index: -logs[index].itemsize)  # so contents need no padding
    ordered = [logs[index] for index in order]
    counts = [len(log.offsets) for log in ordered]
    contents = tuple(log.contents for log in ordered)
    stashes = [(first + which, stash) for first, log in _starts(counts, ordered) for which, stash in log.stashed]
    header_at = (sum(len(part) * part.itemsize for part in contents) + 15) & ~15
    sizes = {log.itemsize for log in ordered}
    targets = np.repeat(order, counts)
    itemsizes: Any = sizes.pop() if len(sizes) == 1 else np.repeat([log.itemsize for log in ordered], counts)
    offsets = _joined([log.offsets for log in ordered]) * itemsizes
    nbytes = _joined([log.lengths for log in ordered]) * itemsizes
    inside = nbytes
    if stashes:
        inside = nbytes.copy()
        inside[[which for which, _ in stashes]] = 0
    sources = np.cumsum(inside) - inside
    chunks: Any = np.empty((6, len(offsets)), np.int64)
    for row, column in enumerate((targets, offsets, 0, sources, nbytes, itemsizes)):
        chunks[row] = column
    for number, (which, _) in enumerate(stashes, 1):
        chunks[2, which], chunks[3, which] = number, 0
    chunks = _cut(_resolved(chunks))
    return PackedWrites(
        targets=chunks[0],
        offsets=chunks[1],
        buffers=chunks[2] if stashes else 0,
        sources=chunks[3],
        lengths=chunks[4] // itemsizes if isinstance(itemsizes, int) else chunks[4] // chunks[5],
        itemsizes=itemsizes if isinstance(itemsizes, int) else chunks[5],
        contents=contents,
        stashes=tuple(stash for _, stash in stashes),
        header_at=header_at,
    )


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


def _picked(addresses: Sequence[int], which: Array | int) -> Any:
    return addresses[which] if isinstance(which, int) else np.array(addresses, np.int64)[which]


def _resolved(writes: Array) -> Array:
    """The writes as disjoint runs, the last write of a byte winning. Rows: target, offset, buffer, source, bytes and
    element size."""
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


def _cut(runs: Array) -> Array:
    """The runs in chunks of at most CHUNK elements."""
    largest = CHUNK * runs[5]
    if bool((runs[4] <= largest).all()):
        return runs
    counts = -(-runs[4] // largest)
    chunks = np.repeat(runs, counts, axis=1)
    skipped = (np.arange(chunks.shape[1]) - np.repeat(np.cumsum(counts) - counts, counts)) * CHUNK * chunks[5]
    chunks[1] += skipped
    chunks[3] += skipped
    chunks[4] = np.minimum(chunks[4] - skipped, CHUNK * chunks[5])
    return chunks


def scatter(buffers: Sequence[Array], writes: PackedWrites, targets: Sequence[Array]) -> None:
    """The kernel's reference: move each chunk from its buffer (the packed one, then the stashes) into its target;
    all are flat uint8."""
    for target, offset, buffer, source, count in zip(*writes.columns(), strict=True):
        targets[target][offset : offset + count] = buffers[buffer][source : source + count]
