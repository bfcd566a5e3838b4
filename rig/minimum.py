"""After a pass that found something: the first finding of each kind shown again by as few operations as possible.

Each list of operations gets a target loaded anew and a fresh pass, with the seed, seat, backend and parameters of the
assignment, as `rig replay` does it later.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from rig.bonds import Ops
from rig.cause import Finding
from rig.drive import Progress
from rig.judge import Cell, Result, verify
from rig.loading import ImportFailedError, loaded
from rig.ops import Op, Step
from rig.shrink import Shrunk, shrink
from rig.traits import one_line

_TIME_UP = "the time was up: it may get shorter still"
_STALL_US = 10_000  # of the few steps of a replay
_SCHEDULES = 20  # that are tried for one list of operations
OPS_MAX = 100_000  # operations up to a finding; of more it would take too long to find the few that matter


def replays(
    cell: Cell,
    spec: Mapping[str, Any],
    found: Sequence[tuple[Finding, int]],
    *,
    until_ns: int,
    draft: Callable[[dict[str, Any]], None] = lambda body: None,
) -> Iterator[dict[str, Any]]:
    """One record body for the first finding of each kind: the operations that show it again, or why there are none.

    `found` has each finding with the step in which it was made. Ends soon after `until_ns` of `time.perf_counter_ns`;
    the kinds share the time that is left. `draft` is told each shorter list on the way. Stops for good if a pass costs
    the process its device: DeviceLostError.
    """
    firsts: dict[str, tuple[Finding, int]] = {}
    for finding, step in found:
        firsts.setdefault(finding.kind, (finding, step))
    for num_done, (finding, step) in enumerate(firsts.values()):
        now = time.perf_counter_ns()
        share_ns = max(0, until_ns - now) // (len(firsts) - num_done)
        yield _replay(cell, spec, finding, step, until_ns=now + share_ns, draft=draft)


def once(cell: Cell, spec: Mapping[str, Any], *, progress: Progress) -> tuple[list[Finding], Result]:
    """One pass over a cell's operations with the target loaded anew: what was found, and what the pass came to."""
    found: list[Finding] = []
    with loaded(spec, device=cell.device) as module:
        steps = verify(cell, module, progress=progress)
        while True:
            try:
                found.append(next(steps))
            except StopIteration as stop:
                return found, stop.value


def is_like(finding: Finding, *, kind: str, tensor: str | None) -> bool:
    """Whether it is the same finding: its kind, and its tensor, where one made anew as NAME#STEP is the same one."""
    return finding.kind == kind and _name(finding.tensor) == _name(tensor)


class DeviceLostError(Exception):
    """A pass cost the process its device."""


def without_ops(finding: Finding, note: str, *, num_ops: int | None = None) -> dict[str, Any]:
    """The body for a finding that no list of operations shows, which says why."""
    none = {"expected": None, "params": {}, "ops": None, "num_ops": {"before": num_ops, "after": None}, "note": note}
    return {"type": "replay", "kind": finding.kind, "summary": one_line(finding.summary)} | none


def _replay(
    cell: Cell,
    spec: Mapping[str, Any],
    finding: Finding,
    step: int,
    *,
    until_ns: int,
    draft: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    ops = _driven(cell, step)
    if len(ops) > OPS_MAX:
        return without_ops(finding, f"not shrunk: it took more than {OPS_MAX:,} operations to find")
    for one in _cells(cell, finding):
        judge = _Judge(one, spec, finding, until_ns=until_ns, num_ops=len(ops), draft=draft)
        shrunk = shrink(ops, shows=judge.shows, deadline_ns=until_ns, clock_ns=time.perf_counter_ns)
        if shrunk.ops is not None:
            return judge.body(shrunk.ops, note="" if shrunk.is_least else _TIME_UP)
    return without_ops(finding, _why(shrunk, is_late=judge.is_late), num_ops=len(ops))


def _why(shrunk: Shrunk, *, is_late: bool) -> str:
    if not shrunk.num_tries:
        return "not shrunk: no time was left"
    tries = f"not reproduced in {shrunk.num_tries} {'try' if shrunk.num_tries == 1 else 'tries'}"
    return tries if shrunk.is_least and not is_late else f"{tries}, then the time was up"


def _cells(cell: Cell, finding: Finding) -> Iterator[Cell]:
    """The cell, after one whose device runs everything as late as it can, where no operation is needed only because it
    moves the dice. A GPU's readers wait behind a stall that no hiccup of the host outlasts.

    Of a cell of several schedules a few are tried for each list, from the one that showed the finding on, since a
    shorter list meets the same dice elsewhere; at last only that one. The choices of an exhaustive one fit no other
    list, so there it is the first few.
    """
    if cell.backend == "sim" and cell.params.get("schedule", "late") != "late":
        yield replace(cell, params={**cell.params, "schedule": "late", "schedules": 1})
    if cell.device.type == "cuda" and 0 < cell.params.get("stall_us", 0) < _STALL_US:
        yield replace(cell, params={**cell.params, "stall_us": _STALL_US})
    if finding.alone is not None:
        alone = {**cell.params, **finding.alone}
        yield replace(cell, params={**alone, "schedules": _SCHEDULES, "choices": ""})
        cell = replace(cell, params=alone)
    yield cell


def _driven(cell: Cell, step: int) -> Ops:
    """The stream up to what was found in `step`: with the beginning of the next one, which settles readers."""
    return tuple(islice(_until(cell.stream(), step), OPS_MAX + 1))


def _until(stream: Iterator[Op], step: int) -> Iterator[Op]:
    for op in stream:
        yield op
        if isinstance(op, Step) and op.number > step:
            return


class _Judge:
    """Whether a list of operations shows a finding; each that does is a draft. On a GPU, whose schedule is not the
    rig's, it has to do so twice.
    """

    def __init__(
        self,
        cell: Cell,
        spec: Mapping[str, Any],
        finding: Finding,
        *,
        until_ns: int,
        num_ops: int,
        draft: Callable[[dict[str, Any]], None],
    ) -> None:
        self._cell, self._spec, self._finding, self._until_ns = cell, spec, finding, until_ns
        self._num_ops, self._draft = num_ops, draft
        self._num_passes = 1 if cell.device.type == "cpu" else 2
        self._shown = finding
        self.is_late = False  # a pass was cut off by the time

    def shows(self, ops: Ops) -> bool:
        """Perform them."""
        shown = [self._pass(ops) for _ in range(self._num_passes)]
        if shown[-1] is None or None in shown:
            return False
        self._shown = shown[-1]
        self._draft(self.body(ops, note=_TIME_UP))
        return True

    def body(self, ops: Ops, *, note: str) -> dict[str, Any]:
        """The record for a list that shows it, with the finding as it showed last."""
        shown = self._shown
        expected = {
            "kind": shown.kind,
            "tensor": shown.tensor,
            "summary": one_line(shown.summary),
            "first": shown.first,
        }
        return {
            "type": "replay",
            "kind": self._finding.kind,
            "summary": one_line(self._finding.summary),
            "expected": expected,
            "params": {**self._cell.params, **(shown.alone or {})},
            "ops": [op.to_dict() for op in ops],
            "num_ops": {"before": self._num_ops, "after": len(ops)},
            "note": note,
        }

    def _pass(self, ops: Ops) -> Finding | None:
        progress = Progress(deadline_ns=self._until_ns)
        try:
            found, result = once(replace(self._cell, ops=ops), self._spec, progress=progress)
        except ImportFailedError:  # it was imported before, so that is another matter: nothing is shown
            return None
        if self._cell.device.type != "cpu":
            gc.collect()  # what is in cycles would keep device memory
        if result.device_lost:
            raise DeviceLostError
        self.is_late = self.is_late or result.hang is not None
        like = self._finding
        return next((f for f in found if is_like(f, kind=like.kind, tensor=like.tensor)), None)


def _name(tensor: str | None) -> str:
    return (tensor or "").partition("#")[0]
