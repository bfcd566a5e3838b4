"""One target against one scenario on one backend: the passes that a worker and its controls are made of."""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from rig import registry
from rig.cause import Finding
from rig.drive import DeadlineError, Observer, Progress, StopDriveError, drive
from rig.ledger_observer import Watch
from rig.measure import Measure
from rig.ops import Op
from rig.overdue import OverdueError
from rig.readers import AtOnce, Late, Readers
from rig.schedules import Schedules
from rig.target import MissingNameError, NeedsGpuError, Target, TargetRaisedError
from rig.traits import built_on_ours, is_device_error, is_interrupt, one_line, optional
from rig.verify import Checked, Verify
from rig.words import Payload

if TYPE_CHECKING:
    from staging.backends.sim import SimDevice


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What is performed, and where. Payloads follow from seed and seat; the stream from the seed alone, or is `ops`.

    `ledger`: a verify pass also keeps account of what happens before what.
    """

    scenario: str
    params: Mapping[str, Any]
    backend: str
    device: torch.device
    seed: int
    seat: str
    ops: tuple[Op, ...] | None = None
    ledger: bool = False

    def stream(self) -> Iterator[Op]:
        """The operations, anew."""
        if self.ops is not None:
            return iter(self.ops)
        stream: Iterator[Op] = registry.load("scenarios", self.scenario).ops(self.params, random.Random(self.seed))
        return stream


@dataclass(slots=True)
class Result:
    """What a pass came to. `skip` says why it was not run, `note` or `hang` what was not looked at; with
    `device_lost` the process cannot use its device any more. `ledger` is what that counted, where there was one."""

    skip: str | None = None
    note: str | None = None
    hang: str | None = None
    device_lost: bool = False
    checked: Checked = field(default_factory=Checked)
    measure: Measure | None = None
    ledger: dict[str, int] = field(default_factory=dict)
    histories: list[str] = field(default_factory=list)  # a digest of the virtual device's, of each of several schedules

    def add(self, other: Result) -> None:
        """Count a further pass in; what ended that one is what ended all."""
        self.skip, self.note, self.hang = other.skip, other.note, other.hang
        self.device_lost |= other.device_lost
        self.checked.nbytes += other.checked.nbytes
        self.checked.wrong.update(other.checked.wrong)
        self.checked.counts.update(other.checked.counts)
        self.ledger = {key: self.ledger.get(key, 0) + n for key, n in other.ledger.items()}


Pass = Generator[Finding, None, Result]


def verify(cell: Cell, module: Any, *, progress: Progress) -> Pass:
    """One checked pass, on sim one under each schedule that the cell asks for: yields findings, returns the result.

    The first schedule that shows anything is the last one: what it found would mostly be found again.
    """
    if cell.backend != "sim":
        result = Result()
        yield from _checked(cell, module, None, progress, result)
        return result
    total, schedules = Result(), Schedules(cell.params, seed=cell.seed, stream=cell.stream)
    goes_on = True
    while goes_on:
        result, is_clean = Result(), True
        for finding in _checked(cell, module, schedules.begin(), progress, result):
            is_clean = False
            yield schedules.named(finding)
        total.add(result)
        goes_on = schedules.end(is_clean=is_clean and not (result.skip or result.note or result.hang))
        if goes_on and progress.deadline_ns is not None and time.perf_counter_ns() > progress.deadline_ns:
            total.hang, goes_on = f"the time was up after {schedules.num_done} of {schedules.num} schedules", False
    total.skip, total.note = schedules.misfit or total.skip, total.note or schedules.rest()
    total.checked.counts.update(schedules.coverage())
    total.histories = schedules.histories
    return total


def measure(cell: Cell, module: Any, *, progress: Progress) -> Pass:
    """One timed pass of the same stream with fresh objects: yields what made it fail, returns the result."""
    sim = Schedules(cell.params, seed=cell.seed, stream=cell.stream).begin() if cell.backend == "sim" else None
    bench, result = _Bench(cell, module, sim), Result()
    payload = Payload(seed=cell.seed, seat=cell.seat)
    result.measure = Measure(
        target=bench.target, readers=bench.readers(stall_us=0) if cell.device.type == "cuda" else None
    )
    yield from _guarded(bench, result.measure, payload, progress, result)
    return result


def device_of(backend: str, device: str) -> torch.device:
    """Where a backend works: `sim` and `cpu` on the host, the others on the seat's device."""
    return torch.device("cpu" if backend in ("sim", "cpu") else device)


def raised(error: BaseException, doing: str) -> Finding:
    """A finding for an exception of the target: what was done, what was raised, and where."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((_OWN, "<frozen"))]
    shipped = [f for f in frames if f.filename.startswith("<")]  # of a file target; before what it called
    where = [f" ({f.filename.strip('<>')}:{f.lineno} in {f.name})" for f in (shipped or frames)[-1:]]
    text = str(error)
    if isinstance(error, SyntaxError):  # whose own text names the file in our brackets
        text, where = error.msg, [f" ({(error.filename or '').strip('<>')}:{error.lineno})"]
    return Finding(
        kind="exception",
        summary=f"{doing} raised {type(error).__name__}{f': {one_line(text)}' if text else ''}{''.join(where)}",
    )


_OWN = __file__.removesuffix("judge.py")


def _checked(
    cell: Cell, module: Any, sim: SimDevice | None, progress: Progress, result: Result
) -> Generator[Finding, None, None]:
    """One checked pass with fresh objects; fills in `result`."""
    bench = _Bench(cell, module, sim, ledger=cell.ledger)
    payload, watch = Payload(seed=cell.seed, seat=cell.seat), bench.watch
    readers = bench.readers() if watch is None else watch.readers
    observer = Verify(target=bench.target, readers=readers, payload=payload)
    result.checked = observer.checked
    yield from _guarded(bench, observer if watch is None else watch.observer(observer), payload, progress, result)
    result.ledger = {} if watch is None else watch.coverage()


class _Bench:
    """Fresh objects for one pass: the manager where the target is built on ours, the adapter."""

    def __init__(self, cell: Cell, module: Any, sim: SimDevice | None, *, ledger: bool = False) -> None:
        self.cell, self.sim = cell, sim
        self.watch = Watch(self.readers(), device=cell.device) if ledger else None
        manager = manager_for(module, cell, self.sim, watch=self.watch)
        self.target = Target(module, device=cell.device, manager=manager)
        if self.watch is not None:
            self.watch.begin(self.target)

    def readers(self, *, stall_us: int | None = None) -> Readers:
        """Readers of the backend's kind."""
        if self.sim is not None:
            return Late(self.sim)
        if self.cell.device.type == "cpu":
            return AtOnce()
        from rig.device import Stalled

        return Stalled(
            self.cell.device, stall_us=self.cell.params.get("stall_us", 1000) if stall_us is None else stall_us
        )


def manager_kind(module: Any) -> Any:
    """The class of the managers that a module built on our library is used with; None for any other module."""
    import staging

    kind = optional(module, "DeviceMemoryManager")
    if isinstance(kind, type) and issubclass(kind, staging.DeviceMemoryManager):
        return kind
    return staging.DeviceMemoryManager if any(built_on_ours(value) for value in vars(module).values()) else None


def manager_for(module: Any, cell: Cell, sim: Any, *, watch: Watch | None = None, **keywords: Any) -> Any:
    """A new default manager on the rig's clock, and under `watch`, if the module is built on our library, else None."""
    import staging
    from staging import backends
    from staging.backends.sim import SimBackend

    kind = manager_kind(module)
    if kind is None:
        return None
    backend: Any = SimBackend(sim) if sim is not None else cell.backend
    if watch is not None:
        backend = watch.backend(backend if sim is not None else backends.create(cell.backend, cell.device))
    manager = kind(device=cell.device, backend=backend, **keywords)
    staging.set_default_manager(manager)
    return manager


def _guarded(
    bench: _Bench, observer: Observer, payload: Payload, progress: Progress, result: Result
) -> Generator[Finding, None, None]:
    """Drive the cell; what the target does wrong becomes findings, what ends the pass early a note."""
    target = bench.target
    scenario = registry.load("scenarios", bench.cell.scenario)
    if target.reads not in (None, "stream_ordered"):
        yield Finding(kind="exception", summary=f'RIG_READS may be "stream_ordered" or absent, not {target.reads!r}')
        return
    if bench.cell.ops is None:  # operations that were performed once are performed again
        result.skip = scenario.skip_reason(bench.cell.params, fenced=target.fenced)
    if target.stream_ordered and bench.sim is not None:
        result.note = "races were not judged here: the target's publishes are stream-ordered, which only a GPU shows"
    try:
        if result.skip is None:
            yield from drive(bench.cell.stream(), target=target, observer=observer, payload=payload, progress=progress)
    except NeedsGpuError as error:
        result.skip = f"needs a GPU: {error}"
    except MissingNameError as error:
        yield Finding(kind="exception", summary=str(error))
    except TargetRaisedError as error:
        cause = error.__cause__ or error
        result.device_lost = is_device_error(cause)
        yield raised(cause, str(error))
    except StopDriveError as stop:
        result.note = str(stop)
    except DeadlineError as error:
        result.hang = str(error)
    except OverdueError as error:
        result.hang = str(error)
        yield Finding(kind="hang", summary=str(error))
    except RuntimeError as error:
        if not is_device_error(error):
            raise
        result.device_lost = True
        yield raised(error, "work that the target queued on the device")
    yield from _close(target.close)


def _close(close: Callable[[], None]) -> Iterator[Finding]:
    try:
        close()
    except BaseException as error:
        if is_interrupt(error):
            raise
        yield raised(error, "close of the manager")
