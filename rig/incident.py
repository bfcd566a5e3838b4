"""One public incident on one seat: its pattern has to be caught, its fix clean, and then the target is judged by it."""

from __future__ import annotations

import random
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rig import registry
from rig.cause import Finding
from rig.drive import Progress
from rig.judge import Cell, Result, manager_for, raised, verify
from rig.loading import loaded
from rig.minimum import once
from rig.ops import Make
from rig.target import CLASSES
from rig.traits import is_interrupt, one_line, optional, takes_guard

_ON_CPU = {"sim", "cpu"}


@dataclass(slots=True)
class Proved:
    """What came of it. `note` says how the pattern was caught and what was clean; `skip`, why nothing was tried;
    `driven` is what something was found in, if it was the target.
    """

    skip: str | None = None
    hang: str | None = None
    note: str | None = None
    device_lost: bool = False
    checked_words: int = 0  # of the fix and of the target
    coverage: dict[str, int] = field(default_factory=dict)
    driven: Cell | None = None

    def say(self, text: str) -> None:
        self.note = text if self.note is None else f"{self.note}; {text}"


@dataclass(slots=True)
class _Seen:
    """One module under the incident's operations, and under its own check where it has one."""

    found: list[Finding]
    result: Result

    @property
    def is_clean(self) -> bool:
        """Whether words were checked and nothing was wrong."""
        return not self.found and self.result.checked.words > 0 and not (self.result.skip or self.result.hang)

    def __str__(self) -> str:
        if self.found:
            return "; ".join(f"{finding.kind}: {finding.summary}" for finding in self.found[:3])
        return self.result.skip or self.result.hang or f"no finding in {self.result.checked.words} checked words"


def prove(cell: Cell, target: Mapping[str, Any], *, progress: Progress) -> Generator[Finding, None, Proved]:
    """Yields what was not caught, what is wrong with the fix, and what is wrong with the target.

    Raises ImportFailedError for the target.
    """
    name = cell.params["name"]
    incident, told = registry.load("incidents", name), Proved()
    told.skip = _not_here(incident, cell)
    if told.skip is not None:
        return told
    if cell.device.type == "cuda" and hasattr(incident, "ops_on_gpu"):
        cell = replace(cell, ops=tuple(incident.ops_on_gpu(random.Random(cell.seed))))

    fixed = _look(cell, incident, f"fixed:{name}", progress)  # first, so that everything is warm where time matters
    buggy = _look(cell, incident, f"incident:{name}", _hurried(incident, progress))
    hit = next((finding for finding in buggy.found if finding.kind == incident.KIND), None)
    told.device_lost = buggy.result.device_lost or fixed.result.device_lost
    told.checked_words = fixed.result.checked.words
    told.coverage = {f"caught_{incident.KIND}": int(hit is not None), "words_of_fix": told.checked_words}
    if hit is None:
        yield Finding(kind="exception", summary=f"not caught: {name} has to be found as {incident.KIND}; {buggy}")
    else:
        told.say(f"caught as {incident.KIND}: {one_line(hit.summary)}")
    if not fixed.is_clean:
        yield Finding(kind="exception", summary=f"the fix of {name} is not clean: {fixed}")
    else:
        told.say(f"fix clean in {told.checked_words:,} words")
    if not told.device_lost:
        yield from _judge(cell, incident, target, told, progress)
    return told


def _judge(
    cell: Cell, incident: Any, target: Mapping[str, Any], told: Proved, progress: Progress
) -> Generator[Finding, None, None]:
    """The target under the same operations, if they are within its contract and it has the names."""
    with loaded(target, device=cell.device) as module:
        if reason := _beyond(incident, cell, module):
            told.say(f"{target['name']} was not judged: {reason}")
            return
        result = yield from verify(cell, module, progress=progress)
    told.driven = cell if result.checked.wrong else None
    told.hang, told.device_lost = result.hang, result.device_lost
    told.checked_words += result.checked.words
    told.coverage |= result.checked.coverage()
    told.say(f"{target['name']}: {result.skip or result.note or f'{result.checked.words:,} words'}")


def _look(cell: Cell, incident: Any, name: str, progress: Progress) -> _Seen:
    """Drive one of the incident's own modules, then let the incident's check look at it."""
    spec = {"name": name, "kind": "builtin", "module": None, "source": None, "path": None, "sha256": None}
    seen = _Seen(*once(cell, spec, progress=progress))
    if hasattr(incident, "check") and not seen.result.device_lost:
        with loaded(spec, device=cell.device) as module:
            seen.found += _checked(cell, incident, module)
    return seen


def _checked(cell: Cell, incident: Any, module: Any) -> list[Finding]:
    manager = manager_for(module, cell, None)
    try:
        text = incident.check(module, cell.device)
    except BaseException as error:
        if is_interrupt(error):
            raise
        return [raised(error, "the incident's check")]
    finally:
        if manager is not None:
            manager.close()
    return [] if text is None else [Finding(kind=incident.KIND, summary=text)]


def _not_here(incident: Any, cell: Cell) -> str | None:
    """Why an incident does not show on a backend, or None."""
    if cell.backend not in incident.BACKENDS:
        shown = f"it shows on {', '.join(incident.BACKENDS)}, not on {cell.backend}"
        return shown if _ON_CPU & set(incident.BACKENDS) else f"needs a GPU: {shown}"
    look = getattr(incident, "skip_reason", None)
    reason: str | None = None if look is None else look(cell.device)
    return reason


def _beyond(incident: Any, cell: Cell, module: Any) -> str | None:
    """Why a target is not asked to do the same, or None."""
    beyond = getattr(incident, "BEYOND", None)
    if beyond is not None and not takes_guard(module):
        return f"beyond contract: {beyond}"
    needed = {CLASSES[op.what] for op in cell.stream() if isinstance(op, Make)}
    missing = sorted(name for name in needed if optional(module, name) is None)
    return f"it has no {', '.join(missing)}" if missing else None


def _hurried(incident: Any, progress: Progress) -> Progress:
    """The deadline of a pattern that hangs: soon, since the same operations take milliseconds where they end."""
    deadline_s = getattr(incident, "DEADLINE_S", None)
    if deadline_s is None:
        return progress
    return Progress(assignment=progress.assignment, deadline_ns=time.perf_counter_ns() + int(deadline_s * 1e9))
