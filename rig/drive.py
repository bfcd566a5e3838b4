"""The one effectful loop: each operation goes to the target and to an observer, which verifies or measures.

`in_flight = k` is kept here: before step N is published, all readers of steps <= N - k have settled.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from rig import ops
from rig.calls import Calls
from rig.cause import Finding
from rig.overdue import OverdueError, place
from rig.target import MissingNameError, NeedsGpuError, Target, TargetRaisedError
from rig.traits import is_interrupt
from rig.words import Bits, Form, Mark, Payload

PUBLISHING = ops.Publish | ops.CopyToGpu | ops.PublishBacked | ops.Expose  # one object each


class StopDriveError(Exception):
    """Enough is known: the rest of the stream would only repeat it. The text becomes the assignment's reason."""


class DeadlineError(Exception):
    """The assignment's time is up; the text says in which step."""


@dataclass(slots=True)
class Progress:
    """Where an assignment stands; read by other threads."""

    assignment: str | None = None
    step: int = 0
    stage: str = ""
    deadline_ns: int | None = None  # by the drive's clock


@dataclass(slots=True)
class Performed:
    """One operation that the target has performed: when, with which payload, what came back and how long it took."""

    op: ops.Op
    mark: Mark
    bits: Bits | None
    result: Any
    elapsed_ns: int


class Observer(Protocol):
    """What is done around the target's calls; every method may yield findings."""

    def before(self, op: ops.Op) -> None:
        """The target is about to perform `op`."""

    def after(self, done: Performed) -> Iterator[Finding]:
        """The target has performed it."""

    def refused(self, op: ops.Op, error: BaseException) -> None:
        """The target raised on an operation beyond upstream's contract."""

    def read(self, op: ops.Read) -> Iterator[Finding]:
        """Launch a reader."""

    def settle(self, until: int | None) -> Iterator[Finding]:
        """Wait for the readers of steps <= `until`, or all, and judge them."""


@dataclass(slots=True)
class Marks:
    """The drive's clock: the engine's step, and how often each tensor was written in it."""

    step: int = 0
    writes: Counter[str] = field(default_factory=Counter)

    def begin(self, step: int) -> None:
        self.step = step
        self.writes.clear()

    def next(self, name: str) -> Mark:
        self.writes[name] += 1
        return Mark(self.step, self.writes[name] - 1)


def drive(
    stream: Iterable[ops.Op],
    *,
    target: Target,
    observer: Observer,
    payload: Payload,
    progress: Progress,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> Iterator[Finding]:
    """Perform `stream`; yields findings as they are made.

    Raises TargetRaisedError, MissingNameError and NeedsGpuError after every launched reader has settled, and
    StopDriveError, DeadlineError and OverdueError at once.
    """
    marks, inputs, calls = Marks(), _Inputs(target, payload), Calls(progress.deadline_ns, clock_ns)
    try:
        for op in stream:
            match op:
                case ops.Step():
                    yield from _end_step(op, target, observer, calls)
                    yield from observer.settle(op.number - op.in_flight)
                    if progress.deadline_ns is not None and clock_ns() > progress.deadline_ns:
                        raise DeadlineError(f"the time was up in step {marks.step}")
                    marks.begin(op.number)
                    progress.step = op.number
                    yield from observer.after(Performed(op, Mark(op.number, 0), None, None, 0))
                case ops.Settle():
                    yield from observer.settle(None)
                case ops.Weigh():
                    yield from observer.settle(None)
                    yield from observer.after(Performed(op, Mark(marks.step, 0), None, None, 0))
                case ops.OnThread():
                    calls.threads.choose(op.thread)
                case ops.Read():
                    yield from observer.read(op)
                case _:
                    mark, bits = inputs.of(op, marks)
                    yield from _perform(op, mark, bits, target, observer, calls)
        yield from observer.settle(None)
    except (TargetRaisedError, MissingNameError, NeedsGpuError):
        yield from observer.settle(None)
        raise
    finally:
        calls.close()


def _perform(
    op: ops.Op, mark: Mark, bits: Bits | None, target: Target, observer: Observer, calls: Calls
) -> Iterator[Finding]:
    try:
        call = target.prepare(op, bits)
    except AttributeError as error:
        raise TargetRaisedError(_doing(op)) from error
    observer.before(op)
    try:
        result, elapsed_ns = calls.chosen(call)
    except (MissingNameError, NeedsGpuError):
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        if calls.limit.fired:
            raise OverdueError(f"step {mark.step}: {_doing(op)} did not return: {place(error)}") from error
        if isinstance(op, ops.Collide) or getattr(op, "beyond", None):
            observer.refused(op, error)
            return
        raise TargetRaisedError(_doing(op)) from error
    yield from observer.after(Performed(op, mark, bits, result, elapsed_ns))


def _end_step(op: ops.Step, target: Target, observer: Observer, calls: Calls) -> Iterator[Finding]:
    """End the step before `op`; the first one is what begins step mode."""
    if not (op.scoped and target.own):
        return
    try:
        _, elapsed_ns = calls.here(target.end_step)
    except BaseException as error:
        if is_interrupt(error):
            raise
        if calls.limit.fired:
            raise OverdueError(f"end of step {op.number - 1} did not return: {place(error)}") from error
        raise TargetRaisedError(f"end of step {op.number - 1}") from error
    yield from observer.after(Performed(EndStep(), Mark(op.number, 0), None, None, elapsed_ns))


def _doing(op: ops.Op) -> str:
    name = f"`{op.name}`" if hasattr(op, "name") else ""
    return f"constructor of {op.what} {name}" if isinstance(op, ops.Make) else f"{op.verb} {name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndStep(ops.Op):
    """The end of a step, as the drive times it; no scenario yields it."""

    verb = "end_step"


class _Inputs:
    """Payloads of operations. Whole-buffer inputs share one scratch, which the next one overwrites: a target that kept
    the caller's memory would hand out foreign words."""

    def __init__(self, target: Target, payload: Payload) -> None:
        self.target, self.payload = target, payload
        self._scratch: dict[str, np.ndarray[Any, Any]] = {}

    def of(self, op: ops.Op, marks: Marks) -> tuple[Mark, Bits | None]:
        match op:
            case ops.Publish() | ops.CopyToGpu() | ops.Expose():
                form, at, extent = self._form(op.name), (0, 0), self._form(op.name).extent(op.num_rows)
            case ops.WriteBacked():
                form = self._form(op.name)
                at, extent = ((0, op.row), (1, op.num_rows)) if form.flat else ((op.row, 0), (op.num_rows, form.cols))
            case ops.Stage():
                form, extent = self._form(op.name), (1, op.length)
                at = (0, max(0, op.row + op.start)) if form.flat else (max(0, op.row), max(0, op.start))
            case ops.Collide():
                form, at, extent = self._form(op.name), (op.row, 0), (1, op.length + 1)
            case ops.StageElem():
                form, extent = self._form(op.name), (1, 1)
                at = (0, max(0, op.row)) if form.flat else (max(0, op.row), 0)
            case _:
                return Mark(marks.step, 0), None
        mark = marks.next(op.name)
        out = None if isinstance(op, ops.Stage | ops.StageElem | ops.Collide) else self._buffer(form, extent)
        return mark, self.payload.block(form, mark, at=at, extent=extent, out=out)

    def _form(self, name: str) -> Form:
        return self.target.forms[name]

    def _buffer(self, form: Form, extent: tuple[int, int]) -> Bits:
        nbytes = extent[0] * extent[1] * form.itemsize
        scratch = self._scratch.get(form.name)
        if scratch is None or scratch.nbytes < nbytes:
            scratch = self._scratch[form.name] = np.empty(nbytes, np.uint8)
        return scratch[:nbytes].view(form.bits).reshape(extent)
