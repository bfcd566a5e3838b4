"""Pools that grow while readers of their old memory are queued."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from rig.ops import Drop, Make, Op, Param, Publish, Read, Step
from rig.scenarios._engine import DTYPE_LIST, PACE, VIA_LIST, beyond_depth, extent, passed, stream

SUMMARY = "pools that grow, one slot or all, under queued readers"
INVARIANTS = (
    "memory that growth replaces stays as it was until its queued readers have run",
    "a slot that grew hands out all rows of the publish that made it grow",
    "slots that did not grow are not re-addressed for those who read them",
    "a dropped pool's memory outlives its queued readers (fenced targets)",
)
PARAMS: dict[str, Param] = PACE | {
    "rows": Param(16, "int", 1, 1 << 24, help="at first"),
    "rows_max": Param(512, "int", 1, 1 << 26, help="what it grows to"),
    "cols": Param(0, "int", 0, 1 << 24, help="0 = one-dimensional"),
    "planes": Param(0, "int", 0, 1 << 16, help="a third dimension, before cols; 0 = none"),
    "dtypes": DTYPE_LIST,
    "num_pools": Param(2, "int", 1, 64),
    "via": VIA_LIST,
    "pattern": Param(
        "repeated", "str", choices=("one", "all", "repeated", "shrink"), help="which publishes are larger"
    ),
    "every": Param(5, "int", 1, 100_000, help="steps from one growth to the next"),
    "remake_every": Param(40, "int", 0, 100_000, help="steps until a pool is made anew, to grow again; 0 = never"),
    "drop": Param("settled", "str", choices=("settled", "queued"), help="when the engine lets go of an old pool"),
}


def skip_reason(params: Mapping[str, Any], *, fenced: bool) -> str | None:
    """Why this cell is not run against a target (with fences or not), or None."""
    if params["drop"] == "queued" and not fenced and not params["beyond_contract"]:
        return "beyond contract: a pool dropped while its readers are queued"
    return beyond_depth(params, per_step=1, fenced=fenced)


def ops(params: Mapping[str, Any], rng: random.Random) -> Iterator[Op]:
    """Each step publishes every pool once, sometimes with more rows than ever before; pools are made anew by and by."""
    old: list[tuple[int, str]] = []  # from which step on a pool may be dropped, and its name
    pools: dict[str, str] = {}
    age = count = 0
    for number in range(1, params["num_steps"] + 1):
        yield Step(number=number, in_flight=params["in_flight"], scoped=params["scope"] == "step")
        if not pools or (params["remake_every"] and age >= params["remake_every"]):
            due = number + (params["in_flight"] if params["drop"] == "settled" else 0)
            old += [(due, name) for name in pools]
            dtypes = params["dtypes"]
            pools = {f"pool{i}#{number}": dtypes[i % len(dtypes)] for i in range(params["num_pools"])}
            age = 0
            for name, dtype in pools.items():
                yield Make(name=name, what="pool", size=extent(params), dtype=dtype, depth=params["depth"])
        for _, name in [entry for entry in old if entry[0] <= number]:
            yield Drop(name=name)
        old = [entry for entry in old if entry[0] > number]
        for name, dtype in pools.items():
            count += 1
            yield Publish(name=name, num_rows=_rows(params, age, rng), via=passed(params, dtype, count))
            yield Read(name=name, stream=stream(params, count))
        age += 1


def _rows(params: Mapping[str, Any], age: int, rng: random.Random) -> int:
    """How many rows a pool of that age publishes."""
    low, every = int(params["rows"]), int(params["every"])
    high = max(low, int(params["rows_max"]))
    turn = age % every == every - 1
    match params["pattern"]:
        case "one":
            rows = high if turn else low
        case "all":
            rows = high if age >= every else low
        case "repeated":
            rows = min(high, low << min(40, age // every + turn))
        case _:
            rows = high if turn else max(1, low // 2)
    return max(1, rows - rng.randrange(max(1, rows // 4)))
