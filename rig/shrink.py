"""The shortest list of operations that still shows a finding: delta debugging, within a time limit. Pure.

`shows` decides; here is only what is tried. Every list that is tried is one that `rig.bonds` cut out, or `rig.reduce`
made smaller: in contract if the whole list was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rig.bonds import Bonds, Ops, without_object
from rig.ops import Make, Op, Step
from rig.reduce import reduced

_TAIL = 4  # steps at the end that are tried first; then twice as many, and so on


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """What a search came to: `ops` is None if no list showed the finding; `is_least` says that nothing was left to
    try when it ended.
    """

    ops: Ops | None
    num_tries: int
    is_least: bool


def shrink(ops: Sequence[Op], *, shows: Callable[[Ops], bool], deadline_ns: int, clock_ns: Callable[[], int]) -> Shrunk:
    """Search until nothing smaller shows the finding, or until `deadline_ns`, after which `shows` is not called."""
    search = _Search(shows, deadline_ns, clock_ns)
    is_least = False
    try:
        search.find(ops)
        before: Ops | None = None
        while search.best != before:
            before = search.best
            search.leave_out_objects()
            search.leave_out(lambda op: isinstance(op, Step))
            search.leave_out(lambda op: not isinstance(op, Step))
            search.reduce()
        is_least = True
    except _TimeUpError:
        pass
    return Shrunk(ops=search.best or None, num_tries=search.num_tries, is_least=is_least)


class _TimeUpError(Exception):
    """The search ends here, with the best list so far."""


class _Search:
    def __init__(self, shows: Callable[[Ops], bool], deadline_ns: int, clock_ns: Callable[[], int]) -> None:
        self._shows, self._deadline_ns, self._clock_ns = shows, deadline_ns, clock_ns
        self._tried: set[int] = set()  # hashes: a clash would only leave one list untried
        self.best: Ops = ()
        self.num_tries = 0

    def find(self, ops: Sequence[Op]) -> None:
        """A first list that shows the finding: mostly its last steps do, and a long stream is slow to repeat."""
        bonds = Bonds(ops)
        starts = [at for at, op in enumerate(bonds.ops) if isinstance(op, Step)]
        num_steps = _TAIL
        while not self.best and num_steps < len(starts):
            tail = {*range(starts[0]), *range(starts[-num_steps], len(bonds.ops))}
            self._take(bonds.only(tail | bonds.makers(tail)))
            num_steps *= 2
        if not self.best:
            self._take(bonds.without(()))

    def leave_out_objects(self) -> None:
        """One object after the other, with all that is done to it."""
        for name in dict.fromkeys(op.name for op in self.best if isinstance(op, Make)):
            self._take(without_object(self.best, name))

    def leave_out(self, is_one: Callable[[Op], bool]) -> None:
        """Ever shorter runs of the operations that `is_one` selects, each with all that needs it."""
        size = len(self._units(is_one))
        while size:
            size = max(1, size // 2)
            begin = 0
            while begin < len(units := self._units(is_one)):
                if not self._take(Bonds(self.best).without(units[begin : begin + size])):
                    begin += size
            size = 0 if size == 1 else size

    def reduce(self) -> None:
        """Smaller fields, as long as that works."""
        while self._take_one(reduced(self.best)):
            pass

    def _units(self, is_one: Callable[[Op], bool]) -> list[int]:
        return [at for at, op in enumerate(self.best) if is_one(op)]

    def _take_one(self, candidates: Iterable[Ops]) -> bool:
        return any(self._take(candidate) for candidate in candidates)

    def _take(self, candidate: Ops) -> bool:
        """Whether a list that was not tried before shows the finding; it is then the best one."""
        if not candidate or hash(candidate) in self._tried:
            return False
        if self._clock_ns() >= self._deadline_ns:
            raise _TimeUpError
        self._tried.add(hash(candidate))
        self.num_tries += 1
        if not self._shows(candidate):
            return False
        self.best = candidate
        return True
