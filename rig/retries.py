"""Assignments that infrastructure cost their seat, waiting for a live seat of the same kind: `retry: {infra: N}`.

Only what was not judged is run again. A seat that is gone without a trace may have been killed by what it was doing,
so that assignment waits behind the others, and costs the next seat as little as possible.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rig.dispatch import Job


class Retries:
    """`kinds` is each seat's kind, `infra` how often an assignment may be run again."""

    def __init__(self, kinds: Mapping[str, str], *, infra: int) -> None:
        self._kinds, self._infra = dict(kinds), infra
        self._waiting: dict[str, deque[Job]] = {kind: deque() for kind in self._kinds.values()}
        self._suspects: dict[str, deque[Job]] = {kind: deque() for kind in self._kinds.values()}

    def put(self, seat: str, *, behind: Iterable[Job], at_hand: Job | None) -> None:
        """Note what a lost seat had not begun, and what it was at."""
        kind = self._kinds[seat]
        self._waiting[kind] += [again for job in behind if (again := self._again(job))]
        self._suspects[kind] += [again for job in (at_hand,) if job and (again := self._again(job))]

    def take(self, seat: str) -> Job | None:
        """What a live seat that has nothing left of its own runs next, or None."""
        kind = self._kinds[seat]
        queue = self._waiting[kind] or self._suspects[kind]
        if not queue:
            return None
        job = queue.popleft()
        assert job.assignment is not None
        return replace(job, assignment=job.assignment | {"seat": seat})

    def _again(self, job: Job) -> Job | None:
        """The next attempt, or None for controls and for what was tried often enough."""
        if job.assignment is None or (attempt := job.assignment.get("attempt", 1)) > self._infra:
            return None
        return replace(job, assignment=job.assignment | {"attempt": attempt + 1})
