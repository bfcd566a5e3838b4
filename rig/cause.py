"""From a wrong read to a finding: the kind of error, who overwrote what, and one sentence with the numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rig.model import Expected, Track
from rig.ops import Make
from rig.trace import FREED, POISON, ZEROS, Origin, Sample, trace
from rig.traits import one_line
from rig.words import Bits, Mark, Payload

KINDS = ("use_after_free", "spill", "slot_reuse", "stale_alias", "lost_write", "wrong_winner", "corruption")
_SAMPLE_MAX = 512  # wrong elements looked at per read


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, as rig.md's findings[] has it (the assignment's id is added by the worker).

    `alone`: the parameters that run just the schedule under which it showed, where the cell asks for several.
    """

    kind: str
    summary: str
    tensor: str | None = None
    first: dict[str, Any] | None = None
    overwriter: dict[str, Any] | None = None
    alone: dict[str, Any] | None = None

    def body(self, assignment: str) -> dict[str, Any]:
        """The record's body, builtins only."""
        return {
            "type": "finding",
            "kind": self.kind,
            "summary": one_line(self.summary),
            "assignment": assignment,
            "first": self.first,
            "overwriter": self.overwriter,
            "replay": None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A read as the drive knows it: what was expected, and where and when it was launched."""

    expected: Expected
    step: int
    slot: int | None
    in_flight: int
    owned: bool = False  # not a slot: a staged tensor, or the caller's own copy


def explain(
    seen: Sighting,
    got: Bits,
    want: Bits,
    *,
    payload: Payload,
    tracks: Mapping[str, Track],
    slots: Mapping[tuple[str, Mark], int],
) -> Finding:
    """Decode the words in which `got` differs from `want` (both rows x columns of bits)."""
    form = seen.expected.form
    wrong = np.flatnonzero(got.ravel() != want.ravel())
    at, cols = np.divmod(wrong[:_SAMPLE_MAX].astype(np.int64), got.shape[1])
    rows = at + seen.expected.first
    find = partial(trace, form=form, step=seen.step, tracks=tracks, payload=payload)
    origins = find(Sample(rows, cols, got[at, cols]))
    dues: list[Origin | None] = [Origin(form.name, seen.expected.mark)] * len(rows)
    if seen.expected.bits is not None:
        dues = find(Sample(rows, cols, want[at, cols]))
    staged = tracks[form.name].make.what == "staged"
    kinds = [_kind(seen, origin, due, staged=staged) for origin, due in zip(origins, dues, strict=True)]
    counted = Counter(kinds)
    per = max(1, form.itemsize // 4)
    kind = next((k for k in KINDS if counted[k] * per >= 2), "corruption")
    one = kinds.index(kind) if kind in counted else 0
    place = int(rows[one]), int(cols[one])
    wrong_one = _Wrong(seen=seen, kind=kind, origin=origins[one], due=dues[one], row=place[0], col=place[1])
    origin = origins[one] if origins[one] not in (None, ZEROS, FREED) and kind in counted else None
    return Finding(
        kind=kind,
        tensor=form.name,
        summary=_summary(wrong_one, num_wrong=len(wrong), num_all=got.size, make=tracks[form.name].make),
        first=_first(seen, place, int(want.flat[wrong[one]]), int(got.flat[wrong[one]])),
        overwriter=_overwriter(origin, slots),
    )


def lost(seen: Sighting, *, freed_in_step: int | None, payload: Payload) -> Finding:
    """The memory of a queued reader was freed; nothing was read."""
    form, block = seen.expected.form, seen.expected.block(payload)
    reader = f"the memory of a reader launched in step {seen.step}{_slot(seen.slot)}"
    when = "" if freed_in_step is None else f" in step {freed_in_step}"
    return Finding(
        kind="use_after_free",
        tensor=form.name,
        summary=f"`{form.name}`: {reader} was freed{when} before it ran (in flight {seen.in_flight})",
        first=_first(
            seen, (0, 0), int(block[0, 0]) if block.size else 0, POISON & ((1 << 8 * min(4, form.itemsize)) - 1)
        ),
        overwriter=None if freed_in_step is None else {"step": freed_in_step, "slot": None},
    )


def _kind(seen: Sighting, origin: Origin | None, target: Origin | None, *, staged: bool) -> str:
    """The kind of one wrong word, given who wrote it and who should have."""
    if origin is None:
        return "corruption"
    if origin == FREED:
        return "use_after_free"
    if origin == ZEROS:
        return "lost_write" if staged else "stale_alias"
    now = seen.expected.mark
    if origin.shift != (0, 0) and (origin.mark.step == now.step or (staged and origin.mark <= now)):
        return "spill"
    if origin.mark > now if origin.name == seen.expected.form.name else origin.mark.step > now.step:
        return "slot_reuse"
    due = now if target is None else target.mark
    if origin.mark.step == due.step:
        return "wrong_winner" if origin.mark < due else "corruption"
    if origin.mark.step < due.step:
        return "lost_write" if staged else "stale_alias"
    return "corruption"


def _first(seen: Sighting, place: tuple[int, int], want: int, got: int) -> dict[str, Any]:
    width = 2 + 2 * seen.expected.form.itemsize
    return {
        "step": seen.step,
        "slot": seen.slot,
        "tensor": seen.expected.form.name,
        "row": place[0],
        "offset": place[1],
        "expected": f"{want:#0{width}x}",
        "got": f"{got:#0{width}x}",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wrong:
    """The wrong element that a finding shows: who wrote it, and whose word was due there."""

    seen: Sighting
    kind: str
    origin: Origin | None
    due: Origin | None
    row: int
    col: int


def _summary(wrong: _Wrong, *, num_wrong: int, num_all: int, make: Make) -> str:
    seen, name = wrong.seen, wrong.seen.expected.form.name
    flight = f"depth {make.depth}, in flight {seen.in_flight}" if make.depth else f"in flight {seen.in_flight}"
    count = f"; {num_wrong} of {num_all} elements wrong, first at row {wrong.row}, offset {wrong.col}"
    where = f"{make.what} `{name}`: read of step {seen.step}{_slot(seen.slot)}"
    return f"{where} {_what(wrong, flight)}{count}"


def _what(wrong: _Wrong, flight: str) -> str:
    """What a read returned, and what that means."""
    seen, origin, due = wrong.seen, wrong.origin, wrong.due
    known = due is not None and due != ZEROS
    if wrong.kind == "use_after_free":
        return f"returned the rig's mark for freed memory: freed under a queued reader ({flight})"
    if origin is None:
        return "returned words that no known write explains, or too few to tell"
    if origin == ZEROS:
        return "returned initial zeros where " + (f"step {due.mark.step}'s words were due" if due else "words were due")
    step, write = origin.mark
    words = f"step {step}'s words" + ("" if origin.name == seen.expected.form.name else f" of `{origin.name}`")
    match wrong.kind:
        case "spill":
            (down, right), home = origin.shift, (wrong.row - origin.shift[0], wrong.col - origin.shift[1])
            moved = ", ".join(f"{n:+d} {unit}" for n, unit in ((down, "rows"), (right, "offsets")) if n)
            return f"returned {words} for row {home[0]}, offset {home[1]}: written {moved or 'to another tensor'} off"
        case "slot_reuse":
            if seen.owned:
                return f"returned {words}: read words of a later {'write' if step == seen.step else 'step'}"
            early = seen.step + seen.in_flight - step  # it may be written again in the step that settles its readers
            when = "within its step" if step == seen.step else f"{early} step{'s' if early > 1 else ''} early"
            return f"returned {words}: slot reused {when} ({flight})"
        case "wrong_winner":
            last = f"write {due.mark.write}" if due and known else "a later one"
            return f"returned write {write} of step {step}, but {last} of that step came last"
        case "corruption":
            return f"returned {words} (write {write}), which were cleared or not applied, or too few to name a cause"
    return f"returned {words} where " + (f"step {due.mark.step}'s were due" if due and known else "newer ones were due")


def _overwriter(origin: Origin | None, slots: Mapping[tuple[str, Mark], int]) -> dict[str, Any] | None:
    return None if origin is None else {"step": origin.mark.step, "slot": slots.get((origin.name, origin.mark))}


def _slot(slot: int | None) -> str:
    return "" if slot is None else f" (slot {slot})"
