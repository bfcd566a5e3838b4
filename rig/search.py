"""The safe-depth search: one depth after the other, from 1 up, until a target is right at one.

Depths are tried in order and none is left out. Halving the range would take fewer passes, but is right only if a deeper
pool is never worse, which is for the target to show: one that takes its depth for a power of two is right at 4 and
wrong at 5. A depth that is too small ends early, by its wrong reads, so the passes saved would be cheap ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rig import registry
from rig.cause import Finding
from rig.drive import Progress
from rig.judge import Cell, Result, verify
from rig.loading import loaded
from rig.traits import one_line, optional


@dataclass(slots=True)
class Searched:
    """What a search came to. `depth` is the smallest that was right; None: none was, or something ended the search:
    `skip`, `hang`, or `lost`, which says what cost the process its device.
    """

    depth: int | None = None
    evidence: list[dict[str, Any]] = field(default_factory=list)
    skip: str | None = None
    hang: str | None = None
    lost: str | None = None
    checked_words: int = 0  # at `depth`
    coverage: dict[str, int] = field(default_factory=dict)  # likewise

    @property
    def device_lost(self) -> bool:
        return self.lost is not None


def search(cell: Cell, target: Mapping[str, Any], *, progress: Progress) -> Searched:
    """Try depth after depth of the cell's way of stepping; raises ImportFailedError.

    What a target does wrong at a depth that is too small is evidence, and no finding.
    """
    told = Searched()
    if cell.backend == "cpu":
        told.skip = "backend cpu reads at once, so that any depth looks like enough; search on sim or on a GPU"
        return told
    for depth in range(1, cell.params["depth_max"] + 1):
        trial = _try(cell, target, depth, progress)
        told.skip, told.hang = trial.last.skip, trial.last.hang
        if trial.finding is not None or trial.is_clean:
            told.evidence.append(trial.evidence())
        if trial.last.device_lost:
            told.lost = f"depth {depth} cost the device: {trial.finding.summary if trial.finding else 'no cause known'}"
        elif trial.is_clean:
            told.depth, told.checked_words, told.coverage = depth, trial.words, dict(trial.coverage)
        elif trial.finding is None and not (told.skip or told.hang):
            told.skip = f"no word was checked at depth {depth}"
        if told.depth is not None or told.skip or told.hang or told.device_lost:
            break
    return told


@dataclass(slots=True)
class _Trial:
    """One depth with one seed after the other, up to the first that shows something wrong."""

    depth: int
    num_seeds: int = 0
    words: int = 0
    coverage: Counter[str] = field(default_factory=Counter)
    finding: Finding | None = None
    last: Result = field(default_factory=Result)

    @property
    def is_clean(self) -> bool:
        """Whether words were checked, and all that was to be seen was right."""
        return self.finding is None and self.words > 0 and self.last.skip is None and self.last.hang is None

    def evidence(self) -> dict[str, Any]:
        """What the record keeps, builtins only."""
        told = {"depth": self.depth, "clean": self.is_clean, "checked_words": self.words, "seeds": self.num_seeds}
        found = self.finding
        return told | ({} if found is None else {"kind": found.kind, "summary": one_line(found.summary)})


def _try(cell: Cell, target: Mapping[str, Any], depth: int, progress: Progress) -> _Trial:
    trial = _Trial(depth)
    for number in range(cell.params["seeds"]):
        found, trial.last = _pass(_at(cell, depth, number), target, progress)
        trial.num_seeds += 1
        trial.words += trial.last.checked.words
        trial.coverage.update(trial.last.checked.coverage())
        trial.finding = found[0] if found else None
        if found or trial.last.skip or trial.last.hang:
            break
    return trial


def _at(cell: Cell, depth: int, number: int) -> Cell:
    """The pass of one depth and seed. On sim the first runs every reader as late as can be, the others by chance."""
    schedule = "random" if number else "late"
    params = registry.load("scenarios", cell.scenario).at_depth(cell.params, depth, schedule=schedule)
    return replace(cell, scenario="slot_reuse", params=params, seed=cell.seed ^ number)


def _pass(cell: Cell, target: Mapping[str, Any], progress: Progress) -> tuple[list[Finding], Result]:
    """The target, imported anew, against one stream."""
    with loaded(target, device=cell.device) as module:
        if cell.backend == "sim" and optional(module, "RIG_READS") == "stream_ordered":
            return [], Result(skip="the target's publishes are stream-ordered: only a GPU shows which depth is enough")
        found, steps = [], verify(cell, module, progress=progress)
        while True:
            try:
                found.append(next(steps))
            except StopIteration as stop:
                return found, stop.value
