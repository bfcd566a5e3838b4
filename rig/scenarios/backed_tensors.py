"""Host arrays that are the truth, published whole or in part, changed or not, by themselves or all at once."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from rig.ops import Make, Op, Param, PublishAll, PublishBacked, Read, Step, WriteBacked
from rig.scenarios._engine import DTYPE_LIST, FILL, PACE, beyond_depth, stream

SUMMARY = "backed tensors: changed, unchanged, changed behind the library's back, published in part or together"
INVARIANTS = (
    "a publish hands out what the host array holds, however it was changed, and of a prefix at least these rows",
    "what was published once and not again may be read for many steps",
    "what is written into the host array and not published is not seen",
    "publishing one tensor publishes no other's changes",
)
PARAMS: dict[str, Param] = PACE | {
    "rows": Param(64, "int", 1, 1 << 24),
    "cols": Param(0, "int", 0, 1 << 20, help="0 = one-dimensional"),
    "dtypes": DTYPE_LIST,
    "fill": FILL,
    "num_backed": Param(4, "int", 1, 256),
    "tracking": Param("compare", "str", choices=("compare", "caller"), help="of targets whose tensors take one"),
    "together": Param(False, "bool", help="all of them once a step, as an engine does, instead of one by one"),
    "changed_share": Param(0.5, "float", 0, 1, help="share of tensors that change in a step"),
    "published_share": Param(0.7, "float", 0, 1, help="share of tensors that are published in a step"),
    "prefix_share": Param(0.3, "float", 0, 1, help="share of publishes that are of the first rows only"),
}


def skip_reason(params: Mapping[str, Any], *, fenced: bool) -> str | None:
    """Why this cell is not run against a target (with fences or not), or None."""
    return beyond_depth(params, per_step=1, fenced=fenced)


def ops(params: Mapping[str, Any], rng: random.Random) -> Iterator[Op]:
    """Each step changes some tensors, publishes some, changes one that it does not publish, and reads every one."""
    size = (params["rows"], params["cols"]) if params["cols"] else params["rows"]
    names = [f"backed{i}" for i in range(params["num_backed"])]
    for i, name in enumerate(names):
        dtype = params["dtypes"][i % len(params["dtypes"])]
        kept = {"dtype": dtype, "depth": params["depth"], "fill": params["fill"], "tracking": params["tracking"]}
        yield Make(name=name, what="backed", size=size, **kept)
    rows, num_reads = params["rows"], 0
    readable = dict.fromkeys(names, rows)  # rows of each that were published last
    for number in range(1, params["num_steps"] + 1):
        yield Step(number=number, in_flight=params["in_flight"], scoped=params["scope"] == "step")
        for name in names:
            if rng.random() < params["changed_share"]:
                yield from _change(name, rows, rng)
        if params["together"]:
            yield PublishAll(names=tuple(names))
            readable = dict.fromkeys(names, rows)
        else:
            for name in names:
                if rng.random() < params["published_share"]:
                    count = rng.randint(1, rows) if rng.random() < params["prefix_share"] else None
                    yield PublishBacked(name=name, num_rows=count)
                    readable[name] = count or rows
        yield from _change(rng.choice(names), rows, rng)  # after the publish: nobody may see it yet
        for name in names:
            num_reads += 1
            some = rng.randint(1, readable[name])
            yield Read(name=name, num_rows=rng.choice((None, some)), stream=stream(params, num_reads))


def _change(name: str, rows: int, rng: random.Random) -> Iterator[Op]:
    first = rng.randrange(rows)
    yield WriteBacked(name=name, row=first, num_rows=rng.choice((1, rows - first, rng.randint(1, rows - first))))
