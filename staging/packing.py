"""Many ragged writes packed for one launch: overlap resolved, contents in one buffer, one row a chunk.

Layout of the packed bytes: `header` int64[3, num_chunks] (destination address, source byte, `length`
elements times 16 plus the element's size), then the contents. `scatter` is the numpy reference of the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

CHUNK = 1024
"""Elements one program of the kernel moves at most."""


@dataclass(slots=True, frozen=True, eq=False)
class Runs:
    """Disjoint runs of one tensor: `length` elements from `source` (in its contents) to `offset` (flat)."""

    offsets: Array  # int64[num_runs]
    sources: Array  # int64[num_runs]
    lengths: Array  # int64[num_runs]

    def __len__(self) -> int:
        return len(self.offsets)


@dataclass(slots=True, frozen=True, eq=False)
class PackedWrites:
    """What one launch writes: for every chunk its target, and where its elements come from and go to."""

    targets: Array  # int64[num_chunks], index into the list of targets
    offsets: Array  # int64[num_chunks], first byte in the target
    sources: Array  # int64[num_chunks], first byte in the packed buffer
    lengths: Array  # int64[num_chunks], elements
    itemsizes: Array  # int64[num_chunks], bytes of an element
    contents: tuple[tuple[int, Array], ...]  # where in the packed buffer each tensor's contents go
    nbytes: int  # of the packed buffer

    def __len__(self) -> int:
        return len(self.targets)

    def write(self, out: Array, addresses: Sequence[int]) -> None:
        """Fill `out` (uint8[nbytes]) with header and contents; `addresses` are the targets' device addresses."""
        header = out[: 24 * len(self)].view(np.int64).reshape(3, len(self))
        np.add(np.asarray(addresses, np.int64)[self.targets], self.offsets, out=header[0])
        header[1] = self.sources
        np.add(self.lengths * 16, self.itemsizes, out=header[2])
        for start, contents in self.contents:
            out[start : start + contents.nbytes] = contents.reshape(-1).view(np.uint8)


def resolve(offsets: Array, lengths: Array) -> Runs:
    """The writes as disjoint runs in which the last write of an element wins; in order of `offsets`.

    `offsets` and `lengths` are int64[num_writes] in the order staged, with their contents one after another.
    """
    sources = np.cumsum(lengths) - lengths
    order = np.argsort(offsets, kind="stable")
    starts, ends = offsets[order], offsets[order] + lengths[order]
    if bool((ends[:-1] <= starts[1:]).all()):
        return Runs(starts, sources[order], lengths[order])
    return _paint(offsets, lengths, sources)


def _paint(offsets: Array, lengths: Array, sources: Array) -> Runs:
    edges = np.unique(np.concatenate([offsets, offsets + lengths]))
    owners = np.full(len(edges) - 1, -1, np.int64)
    first, last = np.searchsorted(edges, offsets), np.searchsorted(edges, offsets + lengths)
    for write, (low, high) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        owners[low:high] = write
    begins = np.flatnonzero(np.diff(owners, prepend=-2))  # where another write takes over
    stops = np.append(begins[1:], len(owners))
    kept = owners[begins] >= 0
    begins, stops = begins[kept], stops[kept]
    winners, starts = owners[begins], edges[begins]
    return Runs(starts, sources[winners] + (starts - offsets[winners]), edges[stops] - starts)


def pack(tensors: Sequence[tuple[Runs, Array]]) -> PackedWrites:
    """One packed launch for the runs and contents of each target, in the order of the targets."""
    counts = [_num_chunks(runs) for runs, _ in tensors]
    total = sum(int(count.sum()) for count in counts)
    cursor, columns, contents = 24 * total, [], []
    for index, ((runs, values), chunks) in enumerate(zip(tensors, counts, strict=True)):
        cursor = (cursor + 15) // 16 * 16  # so that every element is aligned to its size
        columns.append(_chunks(index, runs, chunks, cursor, values.itemsize))
        contents.append((cursor, values))
        cursor += values.nbytes
    targets, offsets, sources, lengths, itemsizes = np.concatenate(columns, axis=1)
    return PackedWrites(targets, offsets, sources, lengths, itemsizes, tuple(contents), cursor)


def _num_chunks(runs: Runs) -> Array:
    chunks: Array = (runs.lengths + (CHUNK - 1)) // CHUNK
    return chunks


def _chunks(target: int, runs: Runs, counts: Array, base: int, itemsize: int) -> Array:
    """int64[5, num_chunks]: target, byte offset, source byte, length and element size of each chunk."""
    total = int(counts.sum())
    columns = np.empty((5, total), np.int64)
    columns[0], columns[4] = target, itemsize
    if total == len(runs):
        skipped: Array | int = 0
        offsets, sources, lengths = runs.offsets, runs.sources, runs.lengths
    else:
        skipped = (np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)) * CHUNK
        offsets, sources, lengths = (np.repeat(c, counts) for c in (runs.offsets, runs.sources, runs.lengths))
    columns[1] = (offsets + skipped) * itemsize
    columns[2] = (sources + skipped) * itemsize + base
    columns[3] = np.minimum(lengths - skipped, CHUNK)
    return columns


def scatter(packed: Array, writes: PackedWrites, targets: Sequence[Array]) -> None:
    """The kernel's reference: move each chunk from `packed` (uint8) into its target (flat uint8)."""
    nbytes = writes.lengths * writes.itemsizes
    rows = zip(writes.targets.tolist(), writes.offsets.tolist(), writes.sources.tolist(), nbytes.tolist(), strict=True)
    for target, offset, source, count in rows:
        targets[target][offset : offset + count] = packed[source : source + count]
