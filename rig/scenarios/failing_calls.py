"""Calls that must fail, among calls that must not: what a failure leaves behind."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from rig.ops import Apply, Clear, FusedApply, Make, Op, Param, Publish, Read, Stage, StageElem, Step
from rig.scenarios._engine import PACE, beyond_depth

SUMMARY = "values that are no numbers and iterables that raise midway, between good calls"
INVARIANTS = (
    "a call that fails raises there and then, and stages or publishes nothing",
    "good calls before and after it lose nothing, and later applies work",
    "a publish that fails costs no slot and disturbs no reader",
)
PARAMS: dict[str, Param] = PACE | {
    "rows": Param(8, "int", 2, 1 << 16),
    "cols": Param(67, "int", 8, 1 << 20),
    "dtypes": Param(["int32", "float32"], "list", choices=("int32", "int64", "float32")),
    "faults": Param(["iterable"], "list", choices=("iterable", "value"), help="upstream raises on values at the apply"),
    "fused": Param(False, "bool", help="int32 tensors are applied together"),
    "publishes": Param(True, "bool", help="also publishes that fail"),
}


def skip_reason(params: Mapping[str, Any], *, fenced: bool) -> str | None:
    """Why this cell is not run against a target (with fences or not), or None."""
    if "value" in params["faults"] and not fenced and not params["beyond_contract"]:
        return "beyond contract: values that are no numbers"
    return beyond_depth(params, per_step=1, fenced=fenced)


def ops(params: Mapping[str, Any], rng: random.Random) -> Iterator[Op]:
    """Each step stages well, badly and well again, applies, and reads everything."""
    rows, cols = params["rows"], params["cols"]
    tables = [f"table.{dtype}" for dtype in params["dtypes"]]
    for name, dtype in zip(tables, params["dtypes"], strict=True):
        yield Make(name=name, what="staged", size=(rows, cols), dtype=dtype, depth=params["depth"])
    yield Make(name="pool", what="pool", size=cols, dtype="int32", depth=params["depth"])
    fused = tuple(name for name in tables if params["fused"] and name.endswith("int32"))
    if fused:
        yield Make(name="writer", what="fused", depth=params["depth"], max_writes=64)
    for number in range(1, params["num_steps"] + 1):
        yield Step(number=number, in_flight=params["in_flight"], scoped=params["scope"] == "step")
        for name in tables:
            yield from _staged(name, params, rng, clear=number % 5 == 0)
        if fused:
            yield FusedApply(name="writer", tensors=fused)
        for name in tables:
            if name not in fused:
                yield Apply(name=name)
            yield Read(name=name)
        yield Publish(name="pool", num_rows=cols, via="list")
        yield Read(name="pool")
        if params["publishes"]:
            yield Publish(name="pool", num_rows=cols, via="list", beyond="value")
            yield Read(name="pool")


def _staged(name: str, params: Mapping[str, Any], rng: random.Random, *, clear: bool) -> Iterator[Op]:
    """Writes to rows of their own, so that none overlaps; one of them fails, and sometimes all are cleared."""
    rows, cols = params["rows"], params["cols"]
    chosen = rng.sample(range(rows), min(rows, 4))
    fault = rng.choice(params["faults"])
    yield Stage(name=name, row=chosen[0], start=0, length=rng.randint(1, cols))
    yield Stage(name=name, row=chosen[1], start=0, length=rng.randint(4, cols), beyond=fault)
    if clear:
        yield Clear(name=name)
    start = rng.randrange(cols)
    yield Stage(name=name, row=chosen[-1], start=start, length=rng.randint(1, cols - start))
    if rng.random() < 0.5 and len(chosen) > 2:
        yield StageElem(name=name, row=chosen[2])
