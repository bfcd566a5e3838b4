"""Two sides of one case, timed in alternation: A B, B A, A B, ... in many short rounds, with a ratio for each round.

Alternation keeps what drifts (clocks, neighbours, temperature) out of the ratio, and many rounds show its spread.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from rig.stats import Histogram


class Side(Protocol):
    """One of the two: a target, or what it is held against, doing the same work."""

    def warm_up(self) -> None:
        """Everything that happens only once: compilation, caches, growth."""

    def round(self) -> Mapping[str, Sequence[int]]:
        """One short round: the nanoseconds of each repetition, by case."""


class Times:
    """What one side took, by case: a histogram of all repetitions and the median of each round."""

    def __init__(self) -> None:
        self.histograms: dict[str, Histogram] = {}
        self.medians_ns: dict[str, list[float]] = {}

    def add(self, samples: Mapping[str, Sequence[int]]) -> None:
        """Take one round."""
        for case, durations_ns in samples.items():
            self.histograms.setdefault(case, Histogram()).record_many(durations_ns)
            self.medians_ns.setdefault(case, []).append(float(np.median(durations_ns)))

    def latency(self) -> dict[str, dict[str, Any]]:
        """By case: n, p50_ns, p90_ns, p99_ns, max_ns, histogram."""
        return {case: self.histograms[case].summary() for case in sorted(self.histograms)}


def alternate(sides: Sequence[Side], *, rounds: int, check: Callable[[], None] = lambda: None) -> list[Times]:
    """Run `rounds` rounds of every side, the order turned round each time; one `Times` per side, in their order.

    `check` is called before each round, and may raise.
    """
    times = [Times() for _ in sides]
    turn = list(zip(sides, times, strict=True))
    with _without_garbage_collection():
        for _ in range(rounds):
            check()
            for side, kept in turn:
                kept.add(side.round())
            turn.reverse()
    return times


def ratios(target: Times, baseline: Times, *, against: str) -> dict[str, dict[str, Any]]:
    """By case, the baseline's time over the target's: median over the rounds with its 10th to 90th percentile.

    More than 1 means that the target is faster.
    """
    found: dict[str, dict[str, Any]] = {}
    for case, ours in sorted(target.medians_ns.items()):
        theirs = baseline.medians_ns.get(case, [])
        pairs = [(a, b) for a, b in zip(ours, theirs, strict=False) if a > 0]
        if not pairs:
            continue
        mine, other = np.array(pairs).T
        low, middle, high = np.percentile(other / mine, [10, 50, 90])
        found[case] = {
            "against": against,
            "ratio": round(float(middle), 4),
            "p10": round(float(low), 4),
            "p90": round(float(high), 4),
            "rounds": len(pairs),
            "target_ns": round(float(np.median(mine)), 1),
            "baseline_ns": round(float(np.median(other)), 1),
        }
    return found


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """A collection in the middle of a round would be counted for whoever happens to run."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
