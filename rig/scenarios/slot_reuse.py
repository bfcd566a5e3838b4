"""Pools published every step while readers of earlier steps are still queued."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from rig.ops import CopyToGpu, Expose, Make, Op, Param, Publish, PublishBacked, Read, Settle, Step, WriteBacked
from rig.scenarios._engine import DTYPE_LIST, FILL, PACE, VIA_LIST, beyond_depth, extent, passed, stream

SUMMARY = "pools and backed tensors published every step under queued readers"
INVARIANTS = (
    "a reader launched during its lease sees the words of its own publish, never those of a later one",
    "a publish hands out what was passed in, whole or a prefix, from tensor, list or array, never the caller's memory",
    "copy_to_gpu returns, or fills `out` with, the words of its own call in stream order",
    "a backed tensor publishes what its host array holds, also the rows that did not change",
    "a step that publishes nothing, or that skips the protocol, costs nobody a slot",
)
PARAMS: dict[str, Param] = PACE | {
    "rows": Param(256, "int", 1, 1 << 26),
    "cols": Param(0, "int", 0, 1 << 24, help="0 = one-dimensional"),
    "planes": Param(0, "int", 0, 1 << 16, help="a third dimension, before cols; 0 = none"),
    "dtypes": DTYPE_LIST,
    "fill": FILL,
    "num_pools": Param(2, "int", 0, 64),
    "publishes_per_step": Param(1, "int", 1, 64),
    "via": VIA_LIST,
    "prefix_every": Param(3, "int", 0, 1000, help="every n-th publish is shorter than the pool; 0 = none"),
    "empty_every": Param(0, "int", 0, 1000, help="every n-th publish has no rows at all; 0 = none"),
    "uneven": Param(False, "bool", help="pool i publishes in every (i + 1)-th step only"),
    "idle_every": Param(0, "int", 0, 1000, help="every n-th step publishes nothing; 0 = none"),
    "idle": Param("quiet", "str", choices=("quiet", "skip"), help="skip: such a step does not end as others do"),
    "copies_every": Param(5, "int", 0, 1000, help="every n-th publish is a copy_to_gpu; 0 = none"),
    "num_backed": Param(1, "int", 0, 64),
    "reads_per_publish": Param(1, "int", 1, 8),
    "read_at": Param("publish", "str", choices=("publish", "step_end"), help="when readers are launched"),
    "buffers_every": Param(
        0, "int", 0, 100_000, help="every n-th step settles and rewrites a UvaBuffer and a NonUvaBuffer; 0 = never"
    ),
    "guard": Param("wait", "str", choices=("wait", "grow", "trust"), help="of targets whose pools take one"),
}


def skip_reason(params: Mapping[str, Any], *, fenced: bool) -> str | None:
    """Why this cell is not run against a target (with fences or not), or None."""
    if params["read_at"] == "step_end" and params["scope"] == "publish" and params["publishes_per_step"] > 1 and fenced:
        return "beyond contract: without step fences a lease ends at the pool's next publish"
    if "bfloat16" in params["dtypes"] and not fenced and not params["beyond_contract"]:
        return "beyond contract: bfloat16, for which numpy has no arrays"
    return beyond_depth(params, per_step=params["publishes_per_step"], fenced=fenced and params["guard"] != "trust")


def ops(params: Mapping[str, Any], rng: random.Random) -> Iterator[Op]:
    """Make the objects; then each step publishes every pool and backed tensor, and reads them."""
    pools = [f"pool{i}" for i in range(params["num_pools"])]
    backed = [f"backed{i}" for i in range(params["num_backed"])]
    dtypes = {name: params["dtypes"][i % len(params["dtypes"])] for i, name in enumerate([*pools, *backed])}
    size = extent(params)
    for name in (*pools, *backed):
        what, fill = ("pool" if name in pools else "backed"), params["fill"]
        kept = {"dtype": dtypes[name], "depth": params["depth"], "guard": params["guard"], "fill": fill}
        yield Make(name=name, what=what, size=size, **kept)
    if params["buffers_every"]:
        for what in ("uva", "nonuva"):
            yield Make(name=what, what=what, size=size, dtype=params["dtypes"][0], fill=params["fill"])
    counts = {"publish": 0, "read": 0}
    for number in range(1, params["num_steps"] + 1):
        is_idle = params["idle_every"] and number % params["idle_every"] == 0
        scoped = params["scope"] == "step" and not (is_idle and params["idle"] == "skip")
        yield Step(number=number, in_flight=params["in_flight"], scoped=scoped)
        if is_idle:
            continue
        turn = [name for i, name in enumerate(pools) if not params["uneven"] or number % (i + 1) == 0]
        for name in turn:
            yield from _pool(name, dtypes[name], params, rng, counts)
        for name in backed:
            yield from _backed(name, params, rng)
        if params["read_at"] == "step_end":
            for name in turn:
                for back in range(params["publishes_per_step"]):
                    yield from _reads(name, params, counts, back=back)
        if params["buffers_every"] and number % params["buffers_every"] == 0:
            yield Settle()
            for name in ("uva", "nonuva"):
                yield Expose(name=name, num_rows=rng.choice((None, rng.randint(1, params["rows"]))))
                yield Read(name=name)


def _pool(name: str, dtype: str, params: Mapping[str, Any], rng: random.Random, counts: dict[str, int]) -> Iterator[Op]:
    for _ in range(params["publishes_per_step"]):
        counts["publish"] += 1
        count = counts["publish"]
        via = passed(params, dtype, count)
        shorter = params["prefix_every"] and count % params["prefix_every"] == 0
        rows = rng.randint(1, params["rows"]) if shorter else params["rows"]
        if params["empty_every"] and count % params["empty_every"] == 0:
            rows, via = 0, "tensor"
        if params["copies_every"] and count % params["copies_every"] == 0:
            yield CopyToGpu(name=name, num_rows=rows, via=via, out=rng.random() < 0.5)
        else:
            yield Publish(name=name, num_rows=rows, via=via)
        if params["read_at"] == "publish":
            yield from _reads(name, params, counts, back=0)


def _backed(name: str, params: Mapping[str, Any], rng: random.Random) -> Iterator[Op]:
    first = rng.randrange(params["rows"])
    yield WriteBacked(name=name, row=first, num_rows=rng.randint(1, params["rows"] - first))
    rows = rng.randint(1, params["rows"]) if rng.random() < 0.3 else None
    yield PublishBacked(name=name, num_rows=rows)
    yield Read(name=name)


def _reads(name: str, params: Mapping[str, Any], counts: dict[str, int], *, back: int) -> Iterator[Op]:
    for _ in range(params["reads_per_publish"]):
        counts["read"] += 1
        yield Read(name=name, back=back, stream=stream(params, counts["read"]))
