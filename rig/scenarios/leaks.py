"""Objects made, used, grown and dropped in cycles that are all alike: nothing may stay behind."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from rig.ops import (
    Apply,
    CopyToGpu,
    Drop,
    FusedApply,
    Make,
    Op,
    Param,
    Publish,
    PublishBacked,
    Read,
    Settle,
    Stage,
    Step,
    Weigh,
    WriteBacked,
)
from rig.scenarios._engine import PACE, beyond_depth

SUMMARY = "cycles of making, using, growing and dropping, weighed to the byte"
INVARIANTS = (
    "after a cycle as many bytes of host, device and pinned memory are held as after the cycle before",
    "and as many objects",
)
PARAMS: dict[str, Param] = PACE | {
    "num_steps": Param(72, "int", 1, 10_000_000, help="a cycle has depth + growths + 2 of them"),
    "rows": Param(4096, "int", 64, 1 << 24, help="a slot has to be larger than what a process's heap moves by itself"),
    "growths": Param(2, "int", 0, 8, help="how often the pool doubles in a cycle"),
    "keep": Param(False, "bool", help="the objects outlive the cycles; growth is then in the first one only"),
}


def skip_reason(params: Mapping[str, Any], *, fenced: bool) -> str | None:
    """Why this cell is not run against a target (with fences or not), or None."""
    return beyond_depth(params, per_step=1, fenced=fenced)


def ops(params: Mapping[str, Any], rng: random.Random) -> Iterator[Op]:
    """A cycle makes, uses and grows; its last step settles, drops everything, and weighs."""
    rows, keep = params["rows"], params["keep"]
    sizes = [rows, *(rows << growth for growth in range(1, params["growths"] + 1)), *[rows] * params["depth"]]
    for number in range(1, params["num_steps"] + 1):
        cycle, at = divmod(number - 1, len(sizes) + 1)
        yield Step(number=number, in_flight=params["in_flight"], scoped=params["scope"] == "step")
        if at == 0 and (cycle == 0 or not keep):
            yield from _made(params)
        if at < len(sizes):
            yield from _used(params, rows if keep and cycle else sizes[at], rng.randrange(8))
            continue
        yield Settle()
        if not keep:
            for name in ("pool", "copied", "backed", "table", "counts", "writer"):
                yield Drop(name=name)
        yield Weigh()


def _made(params: Mapping[str, Any]) -> Iterator[Op]:
    rows, depth = params["rows"], params["depth"]
    for name in ("pool", "copied"):
        yield Make(name=name, what="pool", size=rows, depth=depth)
    yield Make(name="backed", what="backed", size=rows, depth=depth)
    yield Make(name="table", what="staged", size=(8, rows), depth=depth)
    yield Make(name="counts", what="staged", size=rows, depth=depth)
    yield Make(name="writer", what="fused", max_writes=16, depth=depth)


def _used(params: Mapping[str, Any], num_rows: int, row: int) -> Iterator[Op]:
    rows = params["rows"]
    yield Publish(name="pool", num_rows=num_rows)
    yield Read(name="pool")
    yield CopyToGpu(name="copied", num_rows=num_rows)
    yield Read(name="copied")
    yield WriteBacked(name="backed", row=row, num_rows=rows - row)
    yield PublishBacked(name="backed")
    yield Read(name="backed")
    yield Stage(name="table", row=row, start=0, length=rows)
    yield FusedApply(name="writer", tensors=("table",))
    yield Read(name="table", first=row, num_rows=1)
    yield Stage(name="counts", row=0, start=row, length=rows - row)
    yield Apply(name="counts")
    yield Read(name="counts")
