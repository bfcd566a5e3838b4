"""Latency limits such as `publish_us_p99_max`, judged on histograms merged over a cell's seats, and least ratios."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rig.stats import Histogram

_NAME = re.compile(r"(?P<op>[a-z]\w*?)_(?P<unit>ns|us|ms)_(?P<stat>p50|p90|p99|p999|max)_max")
_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000}
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}
FORM = "OP_us_p99_max, with ns, us or ms and p50, p90, p99, p999 or max"


class Limit(NamedTuple):
    """What a limit's name says."""

    op: str
    unit: str
    stat: str

    def value(self, histogram: Histogram) -> float:
        """The limited statistic, in the limit's unit."""
        return histogram.quantile(_QUANTILES[self.stat]) / _NS[self.unit]


class Broken(NamedTuple):
    """One limit that one assignment does not keep (or that cannot be judged, where `is_judged` is False)."""

    assignment: str
    text: str
    is_judged: bool = True


def parse(name: str) -> Limit | None:
    """The parts of a limit's name, or None if it is not one."""
    match = _NAME.fullmatch(name)
    return Limit(match["op"], match["unit"], match["stat"]) if match else None


def check(cell: Sequence[Mapping[str, Any]], limits: Mapping[str, float]) -> list[Broken]:
    """Judge the assignments of one cell, one per seat, together.

    A limit is broken if the merged histogram breaks it; blamed are the seats that break it by themselves. A limit
    without samples is not judged, and said to be.
    """
    broken: list[Broken] = []
    for name, bound in sorted(limits.items()):
        limit = parse(name)
        if limit is None:
            raise ValueError(f"not a limit: {name!r}; expected {FORM}")
        own = {a["id"]: _histogram(a, limit.op) for a in cell}
        merged = Histogram()
        for histogram in own.values():
            merged.merge(histogram)
        if not merged.n:
            broken += [Broken(a["id"], f"{name}: no samples of {limit.op!r} to judge", is_judged=False) for a in cell]
        elif limit.value(merged) > bound:
            values = {id_: limit.value(histogram) for id_, histogram in own.items()}
            over = [id_ for id_, value in values.items() if value > bound] or [max(values, key=lambda id_: values[id_])]
            what = f"{limit.op} {limit.stat} is {limit.value(merged):.1f} {limit.unit} over {len(cell)} seat(s)"
            broken += [Broken(id_, f"{what}, here {values[id_]:.1f}; limit {bound:g} {limit.unit}") for id_ in over]
    return broken


def check_ratios(assignment: Mapping[str, Any], ratio_min: Mapping[str, float]) -> list[Broken]:
    """Judge how often faster than its baseline one assignment was, by case, at the two decimals that reports show."""
    found = (assignment.get("comparison") or {}).get("ratios") or {}
    broken: list[Broken] = []
    for case, bound in sorted(ratio_min.items()):
        told = found.get(case)
        if told is None:
            broken.append(Broken(assignment["id"], f"ratio_min of {case}: it was not compared here", is_judged=False))
        elif round(told["ratio"], 2) < bound:
            spread = f"10th to 90th percentile {told['p10']:.2f} to {told['p90']:.2f}"
            text = f"{case} is {told['ratio']:.2f} times as fast as {told['against']} ({spread}); ratio_min {bound:g}"
            broken.append(Broken(assignment["id"], text))
    return broken


def _histogram(assignment: Mapping[str, Any], op: str) -> Histogram:
    summary = (assignment.get("latency") or {}).get(op)
    return Histogram.from_dict(summary["histogram"]) if summary else Histogram()
