"""The smallest depth at which a pool is right for one way of stepping, with what was seen on both sides of the line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rig.ops import Param
from rig.scenarios import slot_reuse

SUMMARY = "the smallest depth that is enough for a target and a way of stepping, found by trying"
INVARIANTS = (
    "at the depth that is named every late reader saw its own words, with every seed",
    "at each smaller depth at least one reader did not, or the target raised",
)
SEARCH = True  # judged by rig.search, which drives slot_reuse at one depth after the other
_PATTERN = ("in_flight", "publishes_per_step", "idle_every", "read_at", "streams", "scope")
PARAMS: dict[str, Param] = {
    **{key: slot_reuse.PARAMS[key] for key in _PATTERN},
    "guard": replace(
        slot_reuse.PARAMS["guard"], default="trust", help="of targets whose pools take one: with fences, 1"
    ),
    "depth_max": Param(32, "int", 1, 64, help="the last depth that is tried"),
    "num_steps": Param(40, "int", 1, 100_000, help="at each depth and seed; more where a pool would not come round"),
    "seeds": Param(3, "int", 1, 1000, help="a depth counts as enough only if it is right with all of them"),
    "rows": Param(64, "int", 1, 1 << 20),
    "stall_us": slot_reuse.PARAMS["stall_us"],
}
_ONE_POOL = {"num_pools": 1, "num_backed": 0, "prefix_every": 0, "copies_every": 0, "buffers_every": 0}
_ROUNDS = 3  # times that a pool comes round, so that each slot is reused under readers of an earlier use


def problem(key: str, value: Any) -> str | None:
    """What the limits of a parameter cannot say."""
    if key == "idle_every" and value == 1:
        return "1 leaves no step that publishes; expected 0 or at least 2"
    return None


def at_depth(params: Mapping[str, Any], depth: int, *, schedule: str) -> dict[str, Any]:
    """The parameters of slot_reuse for one depth, which may lie beyond the target's contract: that is the question."""
    defaults = {name: param.default for name, param in slot_reuse.PARAMS.items()}
    kept = {key: params[key] for key in (*_PATTERN, "guard", "rows", "stall_us")}
    pace = {"depth": depth, "num_steps": _num_steps(params, depth), "schedule": schedule, "beyond_contract": True}
    return defaults | _ONE_POOL | kept | pace


def _num_steps(params: Mapping[str, Any], depth: int) -> int:
    publishing = params["in_flight"] - (-_ROUNDS * (depth + 1) // params["publishes_per_step"])
    every = params["idle_every"]
    needed: int = publishing if every < 2 else -(-publishing * every // (every - 1))
    return max(needed, int(params["num_steps"]))
