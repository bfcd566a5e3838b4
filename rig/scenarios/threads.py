"""Calls from several threads: one after the other, and one in the midst of another."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from rig.ops import Apply, Collide, Make, OnThread, Op, Param, Publish, Read, Stage, Step
from rig.scenarios._engine import PACE, beyond_depth

SUMMARY = "objects handed from thread to thread, and calls that meet another call on the same object"
INVARIANTS = (
    "an object works on whichever thread it is used, one at a time",
    "a call that meets another one is refused, or both are whole: neither is torn or lost (collisions)",
)
PARAMS: dict[str, Param] = PACE | {
    "rows": Param(8, "int", 3, 1 << 16),
    "cols": Param(130, "int", 8, 1 << 20),
    "num_threads": Param(3, "int", 1, 16),
    "collisions": Param(
        "none", "str", choices=("none", "reenter", "thread"), help="upstream promises one thread: beyond its contract"
    ),
}


def skip_reason(params: Mapping[str, Any], *, fenced: bool) -> str | None:
    """Why this cell is not run against a target (with fences or not), or None."""
    if params["collisions"] != "none" and not fenced and not params["beyond_contract"]:
        return "beyond contract: a call in the midst of another one"
    return beyond_depth(params, per_step=1, fenced=fenced)


def ops(params: Mapping[str, Any], rng: random.Random) -> Iterator[Op]:
    """Each step is another thread's; writes go to rows of their own, so that their order does not matter."""
    rows, cols = params["rows"], params["cols"]
    yield Make(name="pool", what="pool", size=cols, depth=params["depth"])
    yield Make(name="table", what="staged", size=(rows, cols), depth=params["depth"])
    for number in range(1, params["num_steps"] + 1):
        yield Step(number=number, in_flight=params["in_flight"], scoped=params["scope"] == "step")
        which = number % params["num_threads"]
        yield OnThread(thread=f"t{which}" if which else "main")
        yield Publish(name="pool", num_rows=rng.randint(1, cols), via=rng.choice(("tensor", "list")))
        yield Read(name="pool")
        if number % 4 and params["collisions"] == "none":
            continue  # an apply may well wait for the device, and then nothing is queued
        one, two, three = rng.sample(range(rows), 3)
        yield Stage(name="table", row=one, start=0, length=rng.randint(1, cols))
        if params["collisions"] != "none":
            how, length = params["collisions"], rng.randint(4, cols - 1)
            yield Collide(name="table", row=two, length=length, elem_row=three, how=how)
        yield Apply(name="table")
        yield Read(name="table")
    yield OnThread(thread="main")
