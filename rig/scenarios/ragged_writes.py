"""Staged writes of ragged lengths into one- and two-dimensional tensors, resident on the device or in mapped memory."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from rig.ops import Apply, Clear, Make, Op, Param, Read, Step
from rig.scenarios._engine import DTYPE_LIST, FILL, PACE, beyond_depth, stream
from rig.scenarios._ragged import Ragged

SUMMARY = "staged writes of ragged lengths at row and chunk edges, element writes, clears"
INVARIANTS = (
    "an applied write puts each of its values at its own place, and nothing anywhere else",
    "what was cleared, or staged and not applied, is never seen",
    "a reader launched before an apply does not see it",
    "of overlapping writes in one apply the last one staged wins (overlap: true)",
    "a call beyond its row raises and changes nothing (refusals: near or far)",
)
PARAMS: dict[str, Param] = PACE | {
    "rows": Param(16, "int", 1, 1 << 20),
    "cols": Param(1031, "int", 1, 1 << 24, help="odd widths show strides that are taken for granted"),
    "length": Param(2051, "int", 1, 1 << 24, help="of the one-dimensional tensor"),
    "dtypes": Param(["int32", "int64", "float32"], "list", choices=DTYPE_LIST.choices, help="one set of tensors each"),
    "fill": FILL,
    "layouts": Param(["2d", "1d", "uva"], "list", choices=("2d", "1d", "uva"), help="uva = 2d with uva_instead_of_gpu"),
    "writes_per_apply": Param(6, "int", 0, 100_000),
    "applies_per_step": Param(1, "int", 1, 16),
    "clear_every": Param(
        7, "int", 0, 100_000, help="every n-th apply is preceded by writes that are cleared; 0 = none"
    ),
    "via": Param(["list"], "list", choices=("list", "ndarray", "tensor"), help="upstream takes lists only"),
    "overlap": Param(False, "bool"),
    "refusals": Param(
        "none", "str", choices=("none", "near", "far"), help="calls out of bounds; far: also of the tensor"
    ),
}


def skip_reason(params: Mapping[str, Any], *, fenced: bool) -> str | None:
    """Why this cell is not run against a target (with fences or not), or None."""
    upstream = not fenced and not params["beyond_contract"]
    if upstream and (beyond := set(params["dtypes"]) - {"int32", "int64", "float32"}):
        return f"beyond contract: staged tensors of {', '.join(sorted(beyond))}"
    if upstream and (set(params["via"]) != {"list"} or params["fill"] == "nan"):
        return "beyond contract: staged writes from arrays or tensors"
    if upstream and params["refusals"] == "far":
        return "beyond contract: writes out of the tensor, which a target without checks would do to foreign memory"
    return beyond_depth(params, per_step=params["applies_per_step"], fenced=fenced)


def ops(params: Mapping[str, Any], rng: random.Random) -> Iterator[Op]:
    """Each step stages into every tensor, applies, and reads all of it."""
    tensors = []
    for dtype in params["dtypes"]:
        for layout in params["layouts"]:
            name, flat = f"{layout}.{dtype}", layout == "1d"
            size = params["length"] if flat else (params["rows"], params["cols"])
            kept = {"dtype": dtype, "depth": params["depth"], "fill": params["fill"]}
            yield Make(name=name, what="staged", size=size, uva=layout == "uva", **kept)
            rows, cols = (0, params["length"]) if flat else (params["rows"], params["cols"])
            nan = params["fill"] == "nan"  # which no Python number carries
            how = {"via": ["tensor"] if nan else params["via"], "elements": not nan, "overlap": params["overlap"]}
            tensors.append(Ragged(name, rows=rows, cols=cols, rng=rng, **how))
    num_applies = num_reads = 0
    for number in range(1, params["num_steps"] + 1):
        yield Step(number=number, in_flight=params["in_flight"], scoped=params["scope"] == "step")
        for _ in range(params["applies_per_step"]):
            for tensor in tensors:
                num_applies += 1
                if params["clear_every"] and num_applies % params["clear_every"] == 0:
                    yield from tensor.writes(2)
                    yield Clear(name=tensor.name)
                    tensor.applied()
                yield from tensor.writes(params["writes_per_apply"])
                if params["refusals"] != "none":
                    yield from tensor.out_of_bounds(far=params["refusals"] == "far")
                yield Apply(name=tensor.name)
                tensor.applied()
                num_reads += 1
                yield Read(name=tensor.name, stream=stream(params, num_reads))
