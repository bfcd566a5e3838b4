"""The schedules that a cell's verify pass runs under on sim, one after the other, each on a fresh virtual device.

A cell asks by parameters: `schedule` is the kind, `schedules` how many. Schedule i has a seed of its own, which follows
from the cell's and i; operations and payloads are the same under all. The one that showed a finding runs alone with
`schedules: 1` and its number as `schedule_first`, or its `choices` where the kind is exhaustive. In the same way a
search goes on that ended at its bound; an exhaustive one notes the choices for that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

from rig import ops
from rig.cause import Finding

if TYPE_CHECKING:
    from staging.backends.sim import Schedule, SimDevice

PCT_DEPTH = 3  # finds what needs fewer orders, too
_OPS_MAX = 1_000_000  # that are counted for it
_NO_STEPS = ops.Make | ops.Drop | ops.WriteBacked | ops.Stage | ops.StageElem | ops.Clear | ops.Settle


class Schedules:
    """The schedules of one cell on sim. Call `begin`, run the pass, call `end`; as long as there is a next one."""

    def __init__(self, params: Mapping[str, Any], *, seed: int, stream: Callable[[], Iterable[ops.Op]]) -> None:
        """`stream` gives the operations of a pass anew; only PCT counts them."""
        self.num = params.get("schedules", 1)
        self._kind, self._first = params.get("schedule", "late"), params.get("schedule_first", 0)
        self._choices: str | None = params.get("choices", "")  # of the next run; None: there is none
        self._seed, self._stream = seed, stream
        self._schedule: Schedule | None = None
        self._digest = hashlib.sha256()
        self._is_clean = True  # the last pass that ended
        self.num_done = 0
        self.histories: list[str] = []  # a digest of each, if there are several
        self.misfit: str | None = None  # how `choices` cannot be followed

    def begin(self) -> SimDevice:
        """The device of the next pass."""
        from staging.backends.sim import SimDevice

        self._digest = hashlib.sha256()
        self._schedule = self._made(seed_of(self._seed, self._first + self.num_done))
        return SimDevice(schedule=self._schedule, listener=self._listen if self.num > 1 else None)

    def end(self, *, is_clean: bool) -> bool:
        """The pass is over; says whether there is a next one, which there is only after a clean one."""
        from staging.backends.sim import Exhaustive

        self.num_done += 1
        if self.num > 1:
            self.histories.append(self._digest.hexdigest())
        if isinstance(self._schedule, Exhaustive):
            self._choices, misfit = self._schedule.following(), self._schedule.misfit()
            self.misfit = f"the choices are not of this cell: {misfit}" if misfit else None
        self._is_clean = is_clean and self.misfit is None
        return self._is_clean and self.num_done < self.num and self._choices is not None

    def named(self, finding: Finding) -> Finding:
        """A finding of the pass in progress: with the schedule that showed it, where there are several."""
        from staging.backends.sim import Exhaustive

        if self.num == 1:
            return finding
        number = self._first + self.num_done
        name = f"{self._kind} schedule {number}"
        alone: dict[str, Any] = {"schedules": 1, "schedule_first": number}
        if isinstance(self._schedule, Exhaustive):
            choices = self._schedule.choices
            name, alone = f"{name}, choices {choices or 'none'}", {"schedules": 1, "choices": choices}
        return replace(finding, summary=f"{finding.summary}; {name}", alone=alone)

    def coverage(self) -> dict[str, int]:
        """How many schedules ran, in how many orders, and whether all choices were tried."""
        if self.num == 1:
            return {}
        counts = {"schedules": self.num_done, "orders": len(set(self.histories))}
        return counts | ({"exhausted": 1} if self._is_clean and self._choices is None else {})

    def rest(self) -> str | None:
        """What a clean exhaustive search left out when it ended at its bound."""
        is_left = self._kind == "exhaustive" and self.num > 1 and self._is_clean and self._choices is not None
        return f"not every order was tried; choices={self._choices} goes on" if is_left else None

    def _made(self, seed: int) -> Schedule:
        from staging.backends.sim import Exhaustive, Late, Pct, Random

        if self._kind == "exhaustive":
            return Exhaustive(self._choices or "")
        if self._kind == "pct":
            return Pct(seed, num_steps=self._num_steps, depth=PCT_DEPTH)
        return Random(seed) if self._kind == "random" else Late(seed)

    @cached_property
    def _num_steps(self) -> int:
        return max(1, sum(map(_steps, islice(self._stream(), _OPS_MAX))))

    def _listen(self, event: str) -> None:
        self._digest.update(f"{event}\n".encode())


def _steps(op: ops.Op) -> int:
    """About how many points and pieces of work an operation brings, rather too many than too few: see Pct."""
    if isinstance(op, ops.Read):
        return 2 if op.stream == "main" else 6  # it is ordered behind the main stream, and that behind it at times
    if isinstance(op, ops.Apply | ops.FusedApply):
        return 4  # a publish, and the apply's own work
    return 0 if isinstance(op, _NO_STEPS) else 2


def seed_of(seed: int, number: int) -> int:
    """The seed of a cell's schedule of that number; of the first one it is the cell's."""
    if number == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed}|schedule {number}".encode()).digest()[:8], "big") >> 1
