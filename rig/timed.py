"""What a timed scenario is made of: bouts, each with what the target does and what it is held against.

A scenario whose module has `CASES` is timed as a whole: it yields bouts instead of operations, and only mode measure
makes sense for it. It holds no device code; its clients do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rig.compare import Side

_REPS_MIN, _REPS_MAX = 3, 400
_WARM_UPS = 6
Build = Callable[[Any], Side]  # a client of the target, or of what it is held against -> its side


@dataclass(frozen=True, slots=True, kw_only=True)
class Bout:
    """Sides that alternate. `build` makes the target's side of a client, and the compared target's too.

    `reference`, if given, takes that one's place: what `against` names is no target but, say, a plain copy; `rival`
    are the keywords of a second manager of the same target. Neither: the target named by the config's `compare`.
    """

    name: str
    build: Build
    against: str | None = None
    reference: Build | None = None
    rival: Mapping[str, Any] | None = None


class Loop:
    """One call timed as a whole, over and over; what is done `before` each is not timed, nor is the device's work."""

    def __init__(
        self,
        name: str,
        call: Callable[[], Any],
        *,
        sync: Callable[[], None],
        round_ms: float,
        before: Callable[[], Any] | None = None,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._name, self._call, self._before, self._sync = name, call, before, sync
        self._round_ns, self._clock_ns = round_ms * 1e6, clock_ns
        self.num_reps = _REPS_MIN

    def warm_up(self) -> None:
        """A few repetitions; the quickest says how many fill a round."""
        quickest = min(self._repeat(_WARM_UPS))
        self.num_reps = max(_REPS_MIN, min(_REPS_MAX, int(self._round_ns / max(1, quickest))))

    def round(self) -> Mapping[str, Sequence[int]]:
        """The nanoseconds of each repetition."""
        return {self._name: self._repeat(self.num_reps)}

    def _repeat(self, num_reps: int) -> list[int]:
        call, before, sync, clock_ns = self._call, self._before, self._sync, self._clock_ns
        samples = []
        for _ in range(num_reps):
            if before is not None:
                before()
            sync()
            begin = clock_ns()
            call()
            samples.append(clock_ns() - begin)
        sync()
        return samples
