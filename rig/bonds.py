"""Which operation needs which other one, and so what can be left out of a list and leave it within the contract.

A correct target, fenced or not, performs whatever comes out of here as correctly as what went in: a shrunk list must
show the fault that was found, never one that the shrinking made. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace

from rig.ops import Apply, Clear, Drop, Expose, FusedApply, Make, Op, Read, Step, WriteBacked

Ops = tuple[Op, ...]
_NOTHING = -1  # no operation is there that would be needed
_SETTLES = ("settle", "weigh")
_ACCEPTED = ("", "overlap")  # what `beyond` says of a call that a target may take; any other one has to raise


class Bonds:
    """The bonds within one list of operations, found once; lists are cut out of it by index."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self.ops = tuple(ops)
        self._needs: list[list[tuple[int, int]]] = [[] for _ in ops]  # (needed, as long as this one is there)
        self._skipped: dict[int, list[int]] = {}  # of a read: the publishes between its own one and it
        self._pauses: list[int] = []
        self._objects: dict[str, _Object] = {}
        self._dropped: dict[str, tuple[int, int]] = {}  # by name: what dropped it, what had made it
        step: int | None = None
        for at, op in enumerate(self.ops):
            if isinstance(op, Step):
                step = at
            elif step is not None and not isinstance(op, Make):
                # A Step goes only with all that is in it: two steps made one would publish twice as often as the engine
                # promised (publishes a step * in_flight <= depth), and a module without fences would be right to fail.
                self._need(at, step)
            if isinstance(op, Step) or op.verb in _SETTLES:
                self._pauses.append(at)
            for name in names(op):
                self._follow(at, op, name)

    def only(self, kept: Collection[int]) -> Ops:
        """The operations at these indices, less those that need one which is not there; steps are numbered from 1."""
        left = set(kept)
        while lost := {at for at in left if any(given in left and need not in left for need, given in self._needs[at])}:
            left -= lost
        return tuple(self._renewed(sorted(left), left))

    def without(self, gone: Collection[int]) -> Ops:
        """All but these, and but those that need one of them."""
        return self.only(set(range(len(self.ops))).difference(gone))

    def makers(self, kept: Collection[int]) -> set[int]:
        """The constructors of what the operations at these indices use."""
        return {need for at in kept for need, _ in self._needs[at] if need >= 0 and isinstance(self.ops[need], Make)}

    def _renewed(self, order: Sequence[int], left: set[int]) -> Iterator[Op]:
        number = 0
        for at in order:
            op = self.ops[at]
            if isinstance(op, Step):
                number += 1
                op = replace(op, number=number)
            elif isinstance(op, Read):
                op = replace(op, back=sum(publish in left for publish in self._skipped.get(at, ())))
            yield op

    def _need(self, at: int, need: int, *, given: int | None = None) -> None:
        self._needs[at].append((need, at if given is None else given))

    def _follow(self, at: int, op: Op, name: str) -> None:
        thing = self._objects.get(name)
        if isinstance(op, Make):
            self._make(at, op, thing)
            return
        if thing is None:
            self._need(at, _NOTHING)
            return
        self._need(at, thing.made)
        if isinstance(op, Drop):
            self._wait(at, thing)
            self._dropped[name] = at, thing.made
            del self._objects[name]
        elif isinstance(op, Read):
            self._read(at, op, thing)
        elif thing.what == "staged":
            self._stage(at, op, thing)
        elif isinstance(op, WriteBacked) or thing.what == "fused" or getattr(op, "beyond", "") not in _ACCEPTED:
            return
        else:
            if isinstance(op, Expose):  # one memory without protection, whose old alias the rig reads again
                self._wait(at, thing)
                thing.reader = at
            thing.publishes.append(at)

    def _make(self, at: int, op: Make, before: _Object | None) -> None:
        """A name that is given again lets go of its old object, whose readers have to be done."""
        if before is not None:
            self._wait(at, before)
        elif op.name in self._dropped:
            drop, made = self._dropped[op.name]
            self._need(at, drop, given=made)
        self._objects[op.name] = _Object(at, op.what, publishes=[at] if op.what == "backed" else [])

    def _read(self, at: int, op: Read, thing: _Object) -> None:
        """A read stays with the publish that it reads: an older one's lease may be over."""
        thing.reader = at
        if thing.what != "staged":
            self._need(at, thing.publishes[-1 - op.back] if op.back < len(thing.publishes) else _NOTHING)
            self._skipped[at] = thing.publishes[-op.back :] if op.back else []

    def _stage(self, at: int, op: Op, thing: _Object) -> None:
        """A staged write stays with the call that takes it: among other writes it might overlap one."""
        if not isinstance(op, Apply | FusedApply | Clear):
            thing.staged.append(at)
            return
        for write in thing.staged:
            self._need(write, at)
        thing.staged.clear()

    def _wait(self, at: int, thing: _Object) -> None:
        """Whatever waits for the object's last reader has to stay: a settle, or as many steps as are in flight."""
        if thing.reader is None:
            return
        after = self._pauses[bisect_right(self._pauses, thing.reader) :]
        settles = [pause for pause in after if not isinstance(self.ops[pause], Step)]
        last = self.ops[after[-1]] if after else None
        steps = after[-last.in_flight :] if isinstance(last, Step) else []
        for pause in settles[:1] or steps:
            self._need(at, pause, given=thing.made)


@dataclass(slots=True)
class _Object:
    """An object while the list is read: what made it, its publishes, writes that nothing took yet, its last reader."""

    made: int
    what: str
    publishes: list[int] = field(default_factory=list)
    staged: list[int] = field(default_factory=list)
    reader: int | None = None


def names(op: Op) -> list[str]:
    """The objects that an operation works on, whichever fields name them."""
    values = [getattr(op, f.name) for f in fields(op)]
    several = [item for value in values if isinstance(value, tuple) for item in value if isinstance(item, str)]
    one = getattr(op, "name", None)
    return [*([] if one is None else [one]), *several]


def without_object(ops: Sequence[Op], name: str) -> Ops:
    """The list without an object and all that is done to it; what works on several objects keeps the others."""
    narrowed = [_narrowed(op, name) for op in ops]
    gone = {at for at, op in enumerate(narrowed) if op is None or getattr(op, "name", None) == name}
    return Bonds([old if new is None else new for old, new in zip(ops, narrowed, strict=True)]).without(gone)


def _narrowed(op: Op, name: str) -> Op | None:
    """The operation without one of its several objects; None if none is left."""
    for f in fields(op):
        value = getattr(op, f.name)
        if isinstance(value, tuple) and name in value:
            rest = tuple(item for item in value if item != name)
            return replace(op, **{f.name: rest}) if rest else None
    return op
