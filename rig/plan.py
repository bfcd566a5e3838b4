"""(config, seats) to assignments: everything a run will do, as data, before anything happens.

Pure, and imports neither torch, ray nor staging. Whether a cell is within a target's contract is decided on the worker,
which can see the target; such a cell still ends in a record.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from rig import registry
from rig.config import RunConfig, RunEntry
from rig.errors import UsageError, nearest
from rig.seats import Seat
from rig.sources import short_name

BEYOND = "beyond_contract"
_AUTO = {"gpu": "cuda_uva", "cpu": "sim"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One cell on one seat. `params` are complete, `seed` is the same on all seats, `backend` is never `auto`.

    `baseline` is the target that a timed scenario is compared with, `ratio_min` how often faster than it each case
    has to be. `shrink_s` is the time for making replays of findings short; 0 = none are made. `ledger`: a verify pass
    also keeps account of what happens before what.
    """

    id: str
    scenario: str
    target: str
    backend: str
    mode: str
    params: dict[str, Any]
    seat: str
    seed: int
    timeout_s: float
    limits: dict[str, float]
    baseline: str | None = None
    ratio_min: dict[str, float] = field(default_factory=dict)
    shrink_s: float = 0.0
    ledger: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The assignments in the order they run on each seat, and what was left out, with the reason."""

    assignments: tuple[Assignment, ...]
    skipped: tuple[tuple[str, str], ...] = ()

    def dicts(self) -> list[dict[str, Any]]:
        """The assignments as they travel and as they are recorded."""
        return [asdict(assignment) for assignment in self.assignments]


def plan(config: RunConfig, seats: Sequence[Seat], *, only: Sequence[str] = ()) -> Plan:
    """Every cell of every run entry on every seat.

    `only` keeps the ids that match one of its patterns, with or without "@seat". `UsageError` if two entries plan the
    same id, or if a pattern matches nothing.
    """
    assignments: list[Assignment] = []
    skipped: list[tuple[str, str]] = []
    for seat in seats:
        backends, left_out = _backends(config.backends, seat)
        skipped += left_out
        on_seat = [a for entry in config.runs for a in _cells(config, entry, seat=seat, backends=backends)]
        _refuse_twins(on_seat)
        assignments += on_seat
    return Plan(assignments=tuple(_only(assignments, only)), skipped=tuple(skipped))


def _cells(config: RunConfig, entry: RunEntry, *, seat: Seat, backends: Sequence[str]) -> Iterator[Assignment]:
    """One run entry on one seat: targets, then backends, then the product of the sweep as it is written."""
    known = registry.load("scenarios", entry.scenario).PARAMS
    defaults = {name: param.default for name, param in known.items()}
    beyond = {BEYOND: True} if entry.beyond_contract else {}
    against = {"compare": short_name(entry.compare)} if entry.compare else {}
    for target, backend in itertools.product(config.targets, backends):
        for values in itertools.product(*entry.sweep.values()):
            given = dict(entry.params) | dict(zip(entry.sweep, values, strict=True)) | beyond
            cell = f"{entry.scenario}:{short_name(target)}:{backend}:{_shown(given | against)}"
            yield Assignment(
                id=f"{cell}@{seat.id}",
                scenario=entry.scenario,
                target=short_name(target),
                backend=backend,
                mode=entry.mode,
                params=_plain(defaults | given),
                seat=seat.id,
                seed=_seed(config.seed, cell),
                timeout_s=entry.timeout_s,
                limits=dict(entry.limits),
                baseline=against.get("compare"),
                ratio_min=dict(entry.ratio_min),
                shrink_s=config.shrink_s,
                ledger=config.ledger,
            )


def _backends(names: Sequence[str], seat: Seat) -> tuple[list[str], list[tuple[str, str]]]:
    """The backends of a seat with `auto` resolved, each once."""
    best = _AUTO[seat.kind]
    if "auto" in names and best in names:
        reason = f"auto means {best} on a {seat.kind} seat, and {best} is listed too"
        return [name for name in names if name != "auto"], [(f"auto@{seat.id}", reason)]
    return [best if name == "auto" else name for name in names], []


def _only(assignments: list[Assignment], patterns: Sequence[str]) -> list[Assignment]:
    ids = {a.id for a in assignments} | {_cell(a) for a in assignments}
    for pattern in patterns:
        if not any(fnmatchcase(id_, pattern) for id_ in ids):
            raise UsageError(f"--only {pattern}: no such assignment; {nearest(pattern, _few(pattern, ids))}")
    if not patterns:
        return assignments
    return [a for a in assignments if any(fnmatchcase(id_, p) for p in patterns for id_ in (a.id, _cell(a)))]


def _few(pattern: str, ids: Iterable[str]) -> list[str]:
    """The few ids most like a pattern, so that a message stays short."""
    return difflib.get_close_matches(pattern, sorted(ids), n=3, cutoff=0.0)


def _refuse_twins(assignments: Sequence[Assignment]) -> None:
    seen: set[str] = set()
    for assignment in assignments:
        if assignment.id in seen:
            raise UsageError(f"two entries of runs plan {_cell(assignment)}; give one another parameter value")
        seen.add(assignment.id)


def _cell(assignment: Assignment) -> str:
    return assignment.id.rpartition("@")[0]


def _seed(run_seed: int, cell: str) -> int:
    """The seed of a cell: the same on every seat, and independent of every other cell."""
    return int.from_bytes(hashlib.sha256(f"{run_seed}|{cell}".encode()).digest()[:8], "big") >> 1


def _shown(params: Mapping[str, Any]) -> str:
    return ",".join(f"{key}={_text(value)}" for key, value in sorted(params.items()))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "+".join(map(_text, value)) if isinstance(value, tuple | list) else str(value)


def _plain(value: Any) -> Any:
    """Tuples as lists, since assignments travel and are recorded."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value
