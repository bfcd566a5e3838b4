"""What every scenario has in common: the engine's pace, and where upstream's contract ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rig.ops import DTYPES, FILLS, VIAS, Param

PACE: dict[str, Param] = {
    "depth": Param(2, "int", 1, 64, help="max_concurrency of what is built"),
    "in_flight": Param(
        2, "int", 1, 64, help="steps whose readers may be queued; step N is published when those of N - k are done"
    ),
    "num_steps": Param(200, "int", 1, 10_000_000),
    "schedule": Param(
        "late", "str", choices=("late", "random", "pct", "exhaustive"), help="sim: when queued work runs"
    ),
    "schedules": Param(
        1, "int", 1, 100_000, help="sim: how many are tried, each on fresh objects; exhaustive: at most"
    ),
    "schedule_first": Param(
        0, "int", 0, 1_000_000_000, help="the number of the first one, from which its seed follows"
    ),
    "choices": Param(
        "", "str", help="exhaustive: what the first one begins with, as a finding or a bounded run says it"
    ),
    "stall_us": Param(1000, "int", 0, 1_000_000, help="CUDA: what the readers of a step wait behind"),
    "streams": Param(1, "int", 1, 2, help="2 = every other reader runs on a side stream"),
    "scope": Param(
        "step", "str", choices=("step", "publish"), help="use step fences, or let each publish end the lease before it"
    ),
    "beyond_contract": Param(False, "bool", help="also run cells that upstream's contract does not cover"),
}

DTYPE_LIST = Param(["int32"], "list", choices=DTYPES, help="cycled over the objects")
FILL = Param("words", "str", choices=FILLS, help="words tell who wrote them; extremes and nan: the type's edge values")
VIA_LIST = Param(["tensor", "list", "ndarray"], "list", choices=VIAS, help="how contents are passed, cycled")


def beyond_depth(params: Mapping[str, Any], *, per_step: int, fenced: bool) -> str | None:
    """A target without fences promises publishes_per_step * in_flight <= depth, and no more."""
    wanted = per_step * params["in_flight"]
    if fenced or params["beyond_contract"] or wanted <= params["depth"]:
        return None
    pace = f"{per_step} a step x {params['in_flight']} in flight > depth {params['depth']}"
    return f"beyond contract: {pace}, and the target has no fences"


def passed(params: Mapping[str, Any], dtype: str, count: int) -> str:
    """How the `count`-th contents are passed: numpy has no bfloat16, a Python number no NaN payload."""
    via = str(params["via"][count % len(params["via"])])
    cannot = (via == "ndarray" and dtype == "bfloat16") or (via == "list" and params.get("fill") == "nan")
    return "tensor" if cannot else via


def extent(params: Mapping[str, Any]) -> int | tuple[int, ...]:
    """The size of what is built: rows, and planes and columns where there are any."""
    size = tuple(n for n in (params["rows"], params["planes"], params["cols"]) if n)
    return size if len(size) > 1 else int(size[0])


def stream(params: Mapping[str, Any], count: int) -> str:
    """The stream of the `count`-th reader."""
    return "side" if params["streams"] == 2 and count % 2 else "main"
