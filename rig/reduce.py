"""The same operations with smaller numbers: fewer rows and columns, shorter writes, less depth. Pure.

Each list that comes out is in contract if the one that went in was: no write leaves its tensor or comes to overlap
another one, no pool grows that did not grow, and publishes stay within the depth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from functools import partial

from rig.bonds import Ops, names
from rig.ops import Apply, Clear, Drop, FusedApply, Make, Op, Read, Stage, StageElem, Step

_DEPTH_MIN = 2  # what upstream's default is at least; a pool of one slot is another thing
_SCALED = ("num_rows", "row")
_UNSCALED = ("back", "depth", "max_writes", "first")
_STAGED = (Make, Stage, StageElem, Apply, FusedApply, Clear, Read, Drop)


def reduced(ops: Ops) -> Iterator[Ops]:
    """Lists that are smaller in one respect, the largest gain first."""
    yield from _shallower(ops)
    for make in {op.name: op for op in ops if isinstance(op, Make)}.values():
        own = [op for op in ops if make.name in names(op)]
        if make.what == "staged":
            yield from _shorter(ops, make)
            yield from _trimmed(ops, make, own)
        elif all(_is_scalable(op) for op in own):
            yield from _halved(ops, make)


def _shallower(ops: Ops) -> Iterator[Ops]:
    """One step less in flight, with and without one slot less."""
    paced = tuple(
        replace(op, in_flight=op.in_flight - 1) if isinstance(op, Step) and op.in_flight > 1 else op for op in ops
    )
    if paced == ops:
        return
    depths = [op.depth for op in ops if isinstance(op, Make) and op.what != "fused"]
    if all(depth is not None and depth > _DEPTH_MIN for depth in depths):
        yield tuple(
            replace(op, depth=op.depth - 1) if isinstance(op, Make) and op.what != "fused" and op.depth else op
            for op in paced
        )
    yield paced


def _halved(ops: Ops, make: Make) -> Iterator[Ops]:
    """Half the rows of all that is done to an object, so that what fitted fits and what grew may still grow; then half
    of each other dimension.
    """
    size = _size(make)
    if size[0] > 1:
        yield _with(ops, make, partial(_half_rows, rows=size[0] // 2))
    for axis in range(1, len(size)):
        if size[axis] > 1:
            smaller = tuple(n // 2 if i == axis else n for i, n in enumerate(size))
            yield _with(ops, make, partial(_resized, size=smaller))


def _half_rows(op: Op, *, rows: int) -> Op:
    if isinstance(op, Make):
        return _resized(op, size=(rows, *_size(op)[1:]))
    told = {key: value for key in _SCALED if (value := getattr(op, key, None)) is not None}
    halves = {key: value // 2 or (value if key == "num_rows" else 0) for key, value in told.items()}
    if "row" in halves:
        halves["row"] = min(halves["row"], max(0, rows - halves.get("num_rows", 1)))
    return replace(op, **halves)


def _shorter(ops: Ops, make: Make) -> Iterator[Ops]:
    """Half of one staged write. What has to be refused is left as it is: shorter, it might be a proper write."""
    for at, op in enumerate(ops):
        if isinstance(op, Stage) and op.name == make.name and op.length > 1 and op.beyond in ("", "overlap"):
            yield (*ops[:at], replace(op, length=op.length // 2), *ops[at + 1 :])


def _trimmed(ops: Ops, make: Make, own: Sequence[Op]) -> Iterator[Ops]:
    """A staged tensor no larger than what is written and read, if nothing is tried beyond its bounds."""
    refused = any(getattr(op, "beyond", "") not in ("", "overlap") for op in own)
    if refused or len(_size(make)) > 2 or not all(isinstance(op, _STAGED) for op in own):
        return
    flat, rows, cols = len(_size(make)) == 1, 1, 1
    for op in own:
        row, start, length = getattr(op, "row", 0), getattr(op, "start", 0), getattr(op, "length", 1)
        if isinstance(op, Stage | StageElem):
            rows, cols = max(rows, row + 1), max(cols, (row if flat else 0) + start + length)
        elif isinstance(op, Read) and op.num_rows is not None:
            last = getattr(op, "first", 0) + op.num_rows
            rows, cols = (rows, max(cols, last)) if flat else (max(rows, last), cols)
    smaller = (cols,) if flat else (rows, cols)
    if smaller != _size(make) and all(n <= m for n, m in zip(smaller, _size(make), strict=True)):
        yield _with(ops, make, partial(_resized, size=smaller))


def _with(ops: Ops, make: Make, change: Callable[[Op], Op]) -> Ops:
    return tuple(change(op) if make.name in names(op) else op for op in ops)


def _resized(op: Op, *, size: tuple[int, ...]) -> Op:
    """A constructor with another size, written as it was: a number for one dimension."""
    return replace(op, size=size[0] if isinstance(op.size, int) else size) if isinstance(op, Make) else op


def _size(make: Make) -> tuple[int, ...]:
    return (make.size,) if isinstance(make.size, int) else make.size


def _is_scalable(op: Op) -> bool:
    """Whether every number of an operation is known to be an extent in rows, or to be none."""
    numbers = [f.name for f in fields(op) if type(getattr(op, f.name)) is int]
    return isinstance(op, Make) or all(name in (*_SCALED, *_UNSCALED) for name in numbers)
