"""The shapes of timings in records: histograms, and what was compared."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from rig.stats import SUB_BUCKETS

Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Seconds = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Figure = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)]


class Shape(BaseModel):
    """No conversions; keys that nobody relies on may be there."""

    model_config = ConfigDict(strict=True)


class Histogram(Shape):
    sub_buckets: Annotated[int, Field(ge=SUB_BUCKETS, le=SUB_BUCKETS)]
    n: Count
    max_ns: Count
    counts: list[Annotated[list[Annotated[int, Field(ge=0, lt=1 << 53)]], Field(min_length=2, max_length=2)]]


class Latency(Shape):
    n: Count
    histogram: Histogram


class Ratio(Shape):
    against: str
    ratio: Figure
    p10: Figure
    p90: Figure
    target_ns: Figure
    baseline_ns: Figure


class Comparison(Shape):
    baseline: str | None
    versions: dict[str, str]
    ratios: dict[str, Ratio]
    latency: dict[str, Latency]
    pinned_bytes: dict[str, dict[str, Count]]
