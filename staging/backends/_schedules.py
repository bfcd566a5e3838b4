"""Schedules of the virtual accelerator: which queued work runs next, and when the host goes on instead.

Each is for another kind of fault:

- `Late` runs work only when the host waits: the worst case for whoever reuses or frees memory too early. It never runs
  a reader early, so it misses whatever is wrong only then, such as a reader that is not ordered behind its publish.
- `Random` tosses a coin at every point: broad and cheap. It hardly ever delays one reader over many points, or runs one
  stream far ahead of another: n points in a row that way have a chance that falls as a power of n.
- `Pct` (probabilistic concurrency testing) delays and hurries for long, and changes its mind at few points: for faults
  that need few orders to come together in a long run. It finds such a fault in a stated share of its seeds.
- `Exhaustive` tries every choice of a run, one run after the other: proof for small cells, hopeless for long ones.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import ClassVar, Protocol

_COIN = 0.4  # the chance that anything runs at a point of `Random`
_HOST = "."  # in the choices of `Exhaustive`: the host goes on


class Schedule(Protocol):
    """What a SimDevice asks at each point. One object serves one device, from its first call on."""

    name: ClassVar[str]

    def choose(self, ready: Sequence[str], *, host_waits: bool) -> str | None:
        """The stream of `ready` whose next work runs now, or None: the host goes on until the next point.

        `ready` holds the streams that can run, in the order they were made. While the host waits it has at least one
        stream, and one must be chosen; else it may be empty.
        """


class Late:
    """Nothing runs before the host waits; then streams take turns by the seed."""

    name: ClassVar[str] = "late"

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def choose(self, ready: Sequence[str], *, host_waits: bool) -> str | None:
        return _one_of(ready, self._random) if host_waits else None


class Random:
    """At each point something runs by the toss of a coin, and then once more, until the coin falls the other way."""

    name: ClassVar[str] = "random"

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def choose(self, ready: Sequence[str], *, host_waits: bool) -> str | None:
        if not host_waits and (self._random.random() >= _COIN or not ready):
            return None
        return _one_of(ready, self._random)


class Pct:
    """Whoever has the highest priority goes on; priorities are drawn, and change at `depth` - 1 drawn steps.

    The host is one of the threads, as is each stream: above the streams it makes all work as late as can be, below
    them as early as can be. At a change the one that is about to go on falls behind all that never changed. A step is
    one call of `choose`, and `num_steps` an estimate of how many there will be: changes are drawn from that many.

    A fault that shows whenever `depth` events come in the one wrong order (an order of two events has depth 1) is
    found with a chance of at least 1 / (n * k ** (depth - 1)) a seed, for n threads and k = `num_steps`, if the
    estimate is not too low. One that is too high only lowers the chance; `depth` may be more than the fault needs.
    """

    name: ClassVar[str] = "pct"

    def __init__(self, seed: int = 0, *, num_steps: int, depth: int = 3) -> None:
        if num_steps < 1 or depth < 1:
            raise ValueError(f"num_steps={num_steps}, depth={depth}: expected at least 1 of each")
        self._random = random.Random(seed)
        positions = self._random.sample(range(num_steps), min(depth - 1, num_steps))
        self._changes = {position: rank / depth for rank, position in enumerate(positions)}  # below all that are drawn
        self._priorities: dict[str | None, float] = {None: self._drawn()}  # None: the host
        self.num_steps = 0

    def choose(self, ready: Sequence[str], *, host_waits: bool) -> str | None:
        threads: list[str | None] = [*ready] if host_waits else [None, *ready]
        for thread in threads:
            if thread not in self._priorities:
                self._priorities[thread] = self._drawn()
        if self.num_steps in self._changes:
            self._priorities[self._first(threads)] = self._changes[self.num_steps]
        self.num_steps += 1
        return self._first(threads)

    def _drawn(self) -> float:
        return 1 + self._random.random()

    def _first(self, threads: Sequence[str | None]) -> str | None:
        return max(threads, key=lambda thread: self._priorities[thread])


class Exhaustive:
    """One run of all that are possible: the one that `choices` begins; then the host goes on wherever it can.

    Depth first: after a run, `following()` is what to begin the next one with, until it is None. The first run is that
    of "", and as late as can be. A bounded search goes on later from the choices that it did not come to.

    A choice is one character: "." the host goes on, "a" the first stream that could run does, "b" the second one, and
    so on. Points that leave no choice have none.
    """

    name: ClassVar[str] = "exhaustive"

    def __init__(self, choices: str = "") -> None:
        self._begun = choices
        self._options: list[str] = []  # at each choice, in the order they are tried
        self._taken: list[int] = []  # which of them was taken
        self._misfit = ""

    @property
    def choices(self) -> str:
        """What was chosen so far, without what `""` would have chosen at the end of it."""
        last = max((at for at, taken in enumerate(self._taken) if taken), default=-1)
        return self._upto(last + 1)

    def choose(self, ready: Sequence[str], *, host_waits: bool) -> str | None:
        streams = "".join(chr(ord("a") + at) for at in range(len(ready)))
        options = streams if host_waits else _HOST + streams
        taken = self._take(options) if len(options) > 1 else options
        return None if taken == _HOST else ready[streams.index(taken)]

    def following(self) -> str | None:
        """The choices of the next run; None if this was the last. Call it when the run is over."""
        for at in reversed(range(len(self._taken))):
            if self._taken[at] + 1 < len(self._options[at]):
                return self._upto(at) + self._options[at][self._taken[at] + 1]
        return None

    def misfit(self) -> str:
        """Once the run is over: how the choices it was to begin with are not of this run, or ""."""
        left = len(self._begun) - len(self._taken)
        return self._misfit or (f"the run came to {len(self._taken)} of {len(self._begun)} choices" if left > 0 else "")

    def _take(self, options: str) -> str:
        at = len(self._taken)
        taken = options.find(self._begun[at]) if at < len(self._begun) else 0
        if taken < 0:  # no exception: it would look like one of whoever called the device
            self._misfit = self._misfit or f"choice {at} is {self._begun[at]!r}, where there is one of {options!r}"
            taken = 0
        self._options.append(options)
        self._taken.append(taken)
        return options[taken]

    def _upto(self, end: int) -> str:
        pairs = zip(self._options[:end], self._taken[:end], strict=True)
        return "".join(options[taken] for options, taken in pairs)


def _one_of(ready: Sequence[str], drawn: random.Random) -> str:
    return ready[0] if len(ready) == 1 else drawn.choice(ready)
