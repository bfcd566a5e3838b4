"""Rows so far from a tensor's beginning that their offset needs more than 32 bits, or a stride that no one expects."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from rig.ops import Apply, FusedApply, Make, Op, Param, Read, Stage, StageElem, Step
from rig.scenarios._engine import PACE, beyond_depth

SUMMARY = "writes to the first, the last and the middle rows of tables as large as the memory allows"
INVARIANTS = ("a write lands in its row, however far that is from the first one, and in no other",)
PARAMS: dict[str, Param] = PACE | {
    "rows": Param(64, "int", 2, 1 << 22, help="rows x cols >= 2**31 is what it is for: 8 GiB of int32, on a GPU"),
    "cols": Param(4099, "int", 1, 1 << 26),
    "dtype": Param("int32", "str", choices=("int32", "int64", "float32")),
    "length": Param(1500, "int", 1, 1 << 20),
    "fused": Param(False, "bool"),
}


def skip_reason(params: Mapping[str, Any], *, fenced: bool) -> str | None:
    """Why this cell is not run against a target (with fences or not), or None."""
    if params["fused"] and params["dtype"] != "int32" and not fenced and not params["beyond_contract"]:
        return "beyond contract: fused apply of other types than int32"
    return beyond_depth(params, per_step=1, fenced=fenced)


def ops(params: Mapping[str, Any], rng: random.Random) -> Iterator[Op]:
    """Each step writes a few far rows; reads them, their neighbours, and the rows where a short offset would land."""
    rows, cols = params["rows"], params["cols"]
    yield Make(name="table", what="staged", size=(rows, cols), dtype=params["dtype"], depth=params["depth"])
    if params["fused"]:
        yield Make(name="writer", what="fused", depth=params["depth"], max_writes=64)
    for number in range(1, params["num_steps"] + 1):
        yield Step(number=number, in_flight=params["in_flight"], scoped=params["scope"] == "step")
        written = [*rng.sample(range(rows), min(rows, 3)), rows - 1]
        for row in dict.fromkeys(written):
            length = min(params["length"], cols)
            start = rng.choice((0, cols - length, rng.randint(0, cols - length)))
            yield Stage(name="table", row=row, start=start, length=length)
        for row in {rng.randrange(rows)} - set(written):
            yield StageElem(name="table", row=row)
            written.append(row)
        yield FusedApply(name="writer", tensors=("table",)) if params["fused"] else Apply(name="table")
        for row in sorted(_looked_at(written, rows, cols)):
            yield Read(name="table", first=row, num_rows=1)


def _looked_at(written: list[int], rows: int, cols: int) -> set[int]:
    near = {row + by for row in written for by in (-1, 0, 1)}
    wrapped = {(row * cols % (1 << bits)) // cols for row in written for bits in (31, 32)}
    return {row for row in near | wrapped if 0 <= row < rows}
