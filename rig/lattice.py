"""The order of verdicts: what is worse than what."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

ORDER = ("SKIP", "PASS", "INCOMPLETE", "FAIL", "HANG", "INVALID", "ERROR")


class Problem(NamedTuple):
    """Something that stands against PASS, with the verdict it forces at least."""

    verdict: str
    text: str


def worst(verdicts: Iterable[str]) -> str:
    """The worst of some verdicts; SKIP if there are none."""
    return max(verdicts, key=ORDER.index, default="SKIP")
