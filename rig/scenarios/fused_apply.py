"""Many staged tensors applied by one fused launch."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from rig.ops import Apply, Clear, FusedApply, Make, Op, Param, Read, Step
from rig.scenarios._engine import DTYPE_LIST, FILL, PACE, beyond_depth, stream
from rig.scenarios._ragged import Ragged

SUMMARY = "staged writes of several tensors of mixed sizes, applied by one fused launch"
INVARIANTS = (
    "a fused apply puts each value into its own tensor, at its own place, and nothing anywhere else",
    "members with nothing staged stay as they were",
    "a member's own apply and its clear go on working between fused ones",
    "a reader launched before a fused apply does not see it",
    "of overlapping writes to one tensor the last one staged wins (overlap: true)",
)
PARAMS: dict[str, Param] = PACE | {
    "num_tensors": Param(4, "int", 1, 64),
    "rows": Param(16, "int", 1, 1 << 20),
    "cols": Param(1031, "int", 1, 1 << 24, help="of the widest; the others are a half, a third, ... of it"),
    "dtypes": Param(
        ["int32"], "list", choices=DTYPE_LIST.choices, help="cycled over the tensors; upstream: int32 only"
    ),
    "writes_per_tensor": Param(4, "int", 0, 100_000),
    "empty_share": Param(0.3, "float", 0, 1, help="share of members with nothing staged"),
    "own_share": Param(0.0, "float", 0, 1, help="share of members that are applied, or cleared, by themselves before"),
    "fill": FILL,
    "applies_per_step": Param(1, "int", 1, 16),
    "via": Param(["list"], "list", choices=("list", "ndarray", "tensor"), help="upstream takes lists only"),
    "overlap": Param(False, "bool"),
}


def skip_reason(params: Mapping[str, Any], *, fenced: bool) -> str | None:
    """Why this cell is not run against a target (with fences or not), or None."""
    upstream = not fenced and not params["beyond_contract"]
    if upstream and set(params["dtypes"]) != {"int32"}:
        return "beyond contract: fused apply of other types than int32"
    if upstream and set(params["via"]) != {"list"}:
        return "beyond contract: staged writes from arrays or tensors"
    per_step = params["applies_per_step"] * (2 if params["own_share"] else 1)
    return beyond_depth(params, per_step=per_step, fenced=fenced)


def ops(params: Mapping[str, Any], rng: random.Random) -> Iterator[Op]:
    """Each step stages into some of the tensors, applies all at once, and reads every one."""
    tensors = []
    for index in range(params["num_tensors"]):
        cols = max(1, params["cols"] // (index + 1))
        dtype = params["dtypes"][index % len(params["dtypes"])]
        name, kept = f"table{index}", {"dtype": dtype, "depth": params["depth"], "fill": params["fill"]}
        yield Make(name=name, what="staged", size=(params["rows"], cols), **kept)
        via, overlap = params["via"], params["overlap"]
        tensors.append(Ragged(name, rows=params["rows"], cols=cols, rng=rng, via=via, overlap=overlap))
    max_writes = max(1, params["num_tensors"] * params["writes_per_tensor"])
    yield Make(name="writer", what="fused", depth=params["depth"], max_writes=max_writes)
    names, num_reads = tuple(tensor.name for tensor in tensors), 0
    for number in range(1, params["num_steps"] + 1):
        yield Step(number=number, in_flight=params["in_flight"], scoped=params["scope"] == "step")
        for _ in range(params["applies_per_step"]):
            for tensor in tensors:
                if rng.random() >= params["empty_share"]:
                    yield from tensor.writes(params["writes_per_tensor"])
                if params["own_share"] and rng.random() < params["own_share"]:
                    yield Clear(name=tensor.name) if rng.random() < 0.3 else Apply(name=tensor.name)
                    tensor.applied()
                    yield from tensor.writes(1)
            yield FusedApply(name="writer", tensors=names)
            for tensor in tensors:
                tensor.applied()
                num_reads += 1
                yield Read(name=tensor.name, stream=stream(params, num_reads))
