"""What a search for a safe depth came to, in words; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SAID = {"read_at": "publish", "scope": "step", "streams": 1, "idle_every": 0, "guard": "trust"}  # only if otherwise


def sentence(params: Mapping[str, Any], search: Mapping[str, Any]) -> str:
    """Depth, way of stepping and what stands on both sides of the line; or why there is no line."""
    depth, below = search["depth"], [one for one in search["evidence"] if not one["clean"]]
    if depth is not None:
        return f"safe depth: {depth} for {pattern(params)}: {both_sides(search)}"
    if not below:
        return f"no depth was tried for {pattern(params)}"
    return f"no depth up to {below[-1]['depth']} is enough for {pattern(params)}: {_line(below[-1])}"


def pattern(params: Mapping[str, Any]) -> str:
    """The way of stepping: what is in flight, and what is not as usual."""
    num = params["publishes_per_step"]
    words = [f"in_flight {params['in_flight']} x {num} publish{'es' if num > 1 else ''}"]
    return ", ".join(words + [f"{key} {params[key]}" for key, usual in _SAID.items() if params[key] != usual])


def both_sides(search: Mapping[str, Any]) -> str:
    """The evidence right below the depth that was found, and at it; else that of the last depth."""
    depth = search["depth"]
    wanted = (depth - 1, depth) if depth is not None else tuple(one["depth"] for one in search["evidence"][-1:])
    return "; ".join(_line(one) for one in search["evidence"] if one["depth"] in wanted)


def _line(one: Mapping[str, Any]) -> str:
    if one["clean"]:
        return f"depth {one['depth']}: {one['checked_words']:,} words clean"
    summary = one["summary"].removeprefix("pool `pool0`: ").partition("; ")[0]  # there is but one; the rest counts
    return f"depth {one['depth']} fails: {summary}"
