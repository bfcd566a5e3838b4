"""A public incident, re-created: its pattern must be caught, its fix must be clean, and so must the target."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from rig import registry
from rig.ops import Op, Param
from rig.scenarios._engine import PACE

SUMMARY = "a public incident: its pattern is caught, its fix and the target are clean"
INVARIANTS = (
    "the pattern of the incident is found, as what it is",
    "nothing is found in a module with the fix",
    "nothing is found in the target under the same operations",
)
PROVES = True  # judged by rig.incident, from a file of rig/incidents
_NAMES = tuple(registry.names("incidents"))
PARAMS: dict[str, Param] = {  # no schedule: readers as late as can be, so that whether a pattern shows is no chance
    "name": Param(_NAMES[0], "str", choices=_NAMES, help="a file of rig/incidents; see `rig list incidents`"),
    "stall_us": replace(PACE["stall_us"], default=2000),
}


def skip_reason(params: Mapping[str, Any], *, fenced: bool) -> str | None:
    """None: what an incident asks for beyond upstream's contract, it says itself."""
    return None


def ops(params: Mapping[str, Any], rng: random.Random) -> Iterator[Op]:
    """The operations of the incident."""
    yield from registry.load("incidents", params["name"]).ops(rng)
