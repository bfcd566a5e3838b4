"""The shape of what a search for a safe depth leaves in a record."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rig.timing_shapes import Count, Shape

Depth = Annotated[int, Field(ge=1, lt=1 << 31)]


class Evidence(Shape):
    """One depth: `kind` and `summary` are those of the first thing that was wrong."""

    depth: Depth
    clean: bool
    checked_words: Count
    seeds: Count
    kind: str = ""
    summary: str = ""


class Search(Shape):
    depth: Depth | None
    evidence: list[Evidence]
