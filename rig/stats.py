"""Latency histograms that merge exactly: integer counts in the HDR layout, 128 buckets per power of two.

A value below 128 has its own bucket; above, a bucket is at most 1/128 (0.8 %) wide. Raw nanoseconds go in, statistics
come out late, and merging is adding counts, so any grouping of seats and runs gives the same percentiles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

SUB_BUCKETS = 128
_SHIFT_BITS = 7
NUM_BUCKETS = SUB_BUCKETS * (63 - _SHIFT_BITS + 1)


class Histogram:
    """Counts of durations in nanoseconds, from 0 to 2**63 - 1; `n` and `max_ns` are exact."""

    __slots__ = ("_counts", "max_ns", "n")

    def __init__(self) -> None:
        self._counts: NDArray[np.int64] = np.zeros(NUM_BUCKETS, dtype=np.int64)
        self.n = 0
        self.max_ns = 0

    def record(self, ns: int) -> None:
        """Count one duration; ValueError if it is negative."""
        if ns < 0:
            raise ValueError(f"a duration cannot be negative: {ns} ns")
        shift = max(0, ns.bit_length() - 1 - _SHIFT_BITS)
        self._counts[shift * SUB_BUCKETS + (ns >> shift)] += 1
        self.n += 1
        self.max_ns = max(self.max_ns, ns)

    def record_many(self, durations_ns: ArrayLike) -> None:
        """Count an array of integer durations."""
        values = np.asarray(durations_ns, dtype=np.int64).ravel()
        if not len(values):
            return
        if int(values.min()) < 0:
            raise ValueError(f"a duration cannot be negative: {int(values.min())} ns")
        shifts = np.maximum(_bit_lengths(values) - 1 - _SHIFT_BITS, 0)
        np.add.at(self._counts, shifts * SUB_BUCKETS + (values >> shifts), 1)
        self.n += len(values)
        self.max_ns = max(self.max_ns, int(values.max()))

    def merge(self, other: Histogram) -> Self:
        """Add the other's counts to this one; returns self."""
        self._counts += other._counts
        self.n += other.n
        self.max_ns = max(self.max_ns, other.max_ns)
        return self

    def quantile(self, q: float) -> int:
        """The smallest bucket's upper end that at least q of all values reach, never above `max_ns`; 0 if there are
        none.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"a quantile lies between 0 and 1, not {q}")
        if not self.n:
            return 0
        rank = max(1, math.ceil(q * self.n))
        index = int(np.searchsorted(np.cumsum(self._counts), rank))
        return min(_upper_end(index), self.max_ns)

    def to_dict(self) -> dict[str, Any]:
        """Sparse, JSON-able: {"sub_buckets", "n", "max_ns", "counts": [[bucket, count], ...]}."""
        used = np.flatnonzero(self._counts)
        counts = [[int(index), int(self._counts[index])] for index in used]
        return {"sub_buckets": SUB_BUCKETS, "n": self.n, "max_ns": self.max_ns, "counts": counts}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`; ValueError for another layout."""
        if data["sub_buckets"] != SUB_BUCKETS:
            raise ValueError(f"a histogram of {data['sub_buckets']} sub-buckets; this version reads {SUB_BUCKETS}")
        histogram = cls()
        for index, count in data["counts"]:
            histogram._counts[index] += count
        histogram.n, histogram.max_ns = int(data["n"]), int(data["max_ns"])
        return histogram

    def summary(self) -> dict[str, Any]:
        """What a report shows: n, p50_ns, p90_ns, p99_ns, max_ns and the histogram itself."""
        quantiles = {f"p{percent}_ns": self.quantile(percent / 100) for percent in (50, 90, 99)}
        return {"n": self.n, **quantiles, "max_ns": self.max_ns, "histogram": self.to_dict()}


def _bit_lengths(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bits of each value; a float's exponent rounds up near powers of two, which is corrected."""
    _, exponents = np.frexp(values.astype(np.float64))
    lengths = exponents.astype(np.int64)
    too_long = (lengths > 0) & (values >> np.minimum(np.maximum(lengths - 1, 0), 62) == 0)
    lengths[too_long] -= 1
    return lengths


def _upper_end(index: int) -> int:
    """The largest value that falls into a bucket."""
    if index < 2 * SUB_BUCKETS:
        return index
    shift = index // SUB_BUCKETS - 1
    return ((index - shift * SUB_BUCKETS + 1) << shift) - 1
