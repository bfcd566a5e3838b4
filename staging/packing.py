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

    def columns(self) -> tuple[Array, Array]:
        """Flat element offsets int64[n] and lengths int64[n], none of them 0."""

    @property
    def stashed(self) -> Sequence[tuple[int, Any]]:
        """Writes whose contents already lie in a buffer of their own: (which write, buffer)."""


@dataclass(slots=True, frozen=True, eq=False)
class PackedWrites:
    """What one launch moves, chunk by chunk; each column is int64[num_chunks]."""

    targets: Array  # index into the list of targets
    offsets: Array  # first byte in the target
    buffers: Array | None  # index into `stashes` plus 1; 0, or None for all, is the packed buffer itself
    sources: Array  # first byte in the buffer
    lengths: Array  # elements
    itemsizes: Array  # bytes of an element
    contents: tuple[tuple[int, array[int]], ...]  # where in the packed buffer each tensor's contents go
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
        view = out.data
        for start, contents in self.contents:
            view[start : start + len(contents) * contents.itemsize] = memoryview(contents).cast("B")
        header = out[self.header_at :].view(np.int64).reshape(3, len(self))
        bases: Any = targets[0] if len(targets) == 1 else np.array(targets, np.int64)[self.targets]
        np.add(self.offsets, bases, out=header[0])
        origins: Any = packed if self.buffers is None else np.array([packed, *stashes], np.int64)[self.buffers]
        np.add(self.sources, origins, out=header[1])
        np.multiply(self.lengths, 16, out=header[2])
        header[2] += self.itemsizes


def pack(logs: Sequence[Log]) -> PackedWrites:
    """One launch for all writes of `logs`; where writes of a tensor overlap, the last one wins."""
    columns = [log.columns() for log in logs]
    counts = [len(offsets) for offsets, _ in columns]
    writes = np.empty((5, sum(counts)), np.int64)
    targets, offsets, buffers, sources, nbytes = writes
    itemsizes = np.array([log.itemsize for log in logs], np.int64)
    contents, stashes, start, cursor = [], [], 0, 0
    for index, (log, (places, lengths)) in enumerate(zip(logs, columns, strict=True)):
        part = slice(start, start + counts[index])
        cursor = (cursor + 15) & ~15  # so that every element is aligned to its size
        targets[part] = index
        np.multiply(places, log.itemsize, out=offsets[part])
        np.multiply(lengths, log.itemsize, out=nbytes[part])
        inside, stashed = nbytes[part], log.stashed
        buffers[part] = 0
        if stashed:
            inside = inside.copy()
            inside[[which for which, _ in stashed]] = 0
        np.cumsum(inside, out=sources[part])
        sources[part] += cursor - inside
        for which, stash in stashed:
            stashes.append(stash)
            buffers[start + which], sources[start + which] = len(stashes), 0
        contents.append((cursor, log.contents))
        cursor += len(log.contents) * log.itemsize
        start = part.stop
    writes = _resolved(writes)
    chunks = _cut(writes, itemsizes)
    elsewhere = chunks[2] if stashes else None
    sizes = itemsizes[chunks[0]]
    header_at = (cursor + 15) & ~15
    return PackedWrites(
        targets=chunks[0],
        offsets=chunks[1],
        buffers=elsewhere,
        sources=chunks[3],
        lengths=chunks[4] // sizes,
        itemsizes=sizes,
        contents=tuple(contents),
        stashes=tuple(stashes),
        header_at=header_at,
    )


def _resolved(writes: Array) -> Array:
    """The writes as disjoint runs, the last write of a byte winning; columns as in `pack`, in bytes."""
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


def _cut(runs: Array, itemsizes: Array) -> Array:
    """The runs in chunks of at most CHUNK elements."""
    largest = CHUNK * itemsizes[runs[0]] if len(itemsizes) > 1 else np.int64(CHUNK * int(itemsizes[0]))
    if bool((runs[4] <= largest).all()):
        return runs
    counts = -(-runs[4] // largest)
    chunks = np.repeat(runs, counts, axis=1)
    steps = np.repeat(largest, counts) if np.ndim(largest) else largest
    skipped = (np.arange(chunks.shape[1]) - np.repeat(np.cumsum(counts) - counts, counts)) * steps
    chunks[1] += skipped
    chunks[3] += skipped
    chunks[4] = np.minimum(chunks[4] - skipped, steps)
    return chunks


def scatter(buffers: Sequence[Array], writes: PackedWrites, targets: Sequence[Array]) -> None:
    """The kernel's reference: move each chunk from its buffer (the packed one, then the stashes) into its target;
    all are flat uint8."""
    if writes.buffers is None and len(targets) == 1 and bool((writes.lengths == 1).all()):
        carrier = np.dtype(f"u{int(writes.itemsizes[0])}")
        size = carrier.itemsize
        source = buffers[0][: writes.header_at // size * size].view(carrier)
        targets[0].view(carrier)[writes.offsets // size] = source[writes.sources // size]
        return
    which = writes.buffers.tolist() if writes.buffers is not None else [0] * len(writes)
    nbytes = (writes.lengths * writes.itemsizes).tolist()
    rows = zip(writes.targets.tolist(), writes.offsets.tolist(), which, writes.sources.tolist(), nbytes, strict=True)
    for target, offset, buffer, source, count in rows:
        targets[target][offset : offset + count] = buffers[buffer][source : source + count]
