"""What is wrong with what a run entry says about time: its mode, limits and comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rig import limits
from rig.errors import nearest
from rig.marks import Path
from rig.ops import OPS

if TYPE_CHECKING:
    from rig.config import RunEntry

_TIMED = {*OPS, "end_step"} - {"make", "step", "drop", "write_backed", "read", "settle"}
Problem = tuple[Path, str]


def of_entry(path: Path, entry: RunEntry, cases: Mapping[str, str | None] | None) -> Iterator[Problem]:
    """`cases` are those of a scenario that is timed as a whole, with what each is held against; None for others."""
    for key in entry.limits:
        limit, timed = limits.parse(key), _TIMED if cases is None else cases
        if limit is None:
            yield (*path, "limits", key), f"unknown limit {key!r}; expected {limits.FORM}"
        elif limit.op not in timed:
            yield (*path, "limits", key), f"unknown operation {limit.op!r} in a limit; {nearest(limit.op, timed)}"
    if entry.limits and entry.mode == "verify":
        yield (*path, "limits"), "limits need timings, and mode is verify; expected mode measure or both"
    yield from _of_calls(path, entry) if cases is None else _of_wholes(path, entry, cases)


def _of_calls(path: Path, entry: RunEntry) -> Iterator[Problem]:
    for key in ("compare", "ratio_min"):
        if getattr(entry, key):
            yield (*path, key), f"{entry.scenario} is timed call by call; expected a scenario such as hot_path here"


def _of_wholes(path: Path, entry: RunEntry, cases: Mapping[str, str | None]) -> Iterator[Problem]:
    if entry.mode != "measure":
        yield (*path, "mode"), f"found {entry.mode!r}; expected 'measure': {entry.scenario} checks no words"
    for case in entry.ratio_min:
        if case not in cases:
            yield (*path, "ratio_min", case), f"unknown case {case!r} of {entry.scenario}; {nearest(case, cases)}"
        elif cases[case] is None and entry.compare is None:
            yield (*path, "ratio_min", case), "nothing to be faster than; expected `compare: TARGET` beside it"
