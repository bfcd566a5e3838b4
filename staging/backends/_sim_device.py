"""A virtual accelerator: streams run queued work late, over host memory, in one thread and by one schedule.

Work runs at *scheduling points* (after each call that queues something, and at `advance()`) and while the host waits
for a fence, as the schedule has it, which keeps each stream's own order; `_schedules` says which schedule is for what.
The same seed and the same calls give the same history, so a race is found again every time. Work can be captured as a
graph, which what a device cannot record ruins, as on a real one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from staging.backends._schedules import Late, Random, Schedule


class SimStream:
    """A queue of the device; work on it runs in order, when the schedule lets it."""

    __slots__ = ("name", "num_queued", "num_run", "queue")

    def __init__(self, name: str) -> None:
        self.name = name
        self.queue: deque[Callable[[], None] | SimFence] = deque()
        self.num_queued = 0
        self.num_run = 0

    def __repr__(self) -> str:
        return f"SimStream({self.name!r}, {len(self.queue)} queued)"

    def runnable(self) -> bool:
        """Whether the head of the queue can run now: there is one, and it is no unmet order."""
        if not self.queue:
            return False
        head = self.queue[0]
        return not isinstance(head, SimFence) or head.done()


class SimFence:
    """Done when everything that was queued on its stream before it has run."""

    __slots__ = ("_device", "_stream", "count")

    def __init__(self, device: SimDevice, stream: SimStream) -> None:
        self._device = device
        self._stream = stream
        self.count = stream.num_queued

    @property
    def stream(self) -> str:
        return self._stream.name

    def done(self) -> bool:
        self._device.forbid("the query of a fence")
        return self._stream.num_run >= self.count

    def wait(self, timeout_s: float | None = None) -> bool:
        """Run queued work by the schedule until done. Virtual time needs no limit: False means a deadlock."""
        self._device.tell("wait", self)
        while not self.done():
            if not self._device.run_one():
                return False
        return True


class SimGraph:
    """Work captured by `SimDevice.capture`, in its order; `replay` queues all of it on the current stream."""

    def __init__(self, device: SimDevice, stream: SimStream) -> None:
        self._device = device
        self.stream = stream
        self.work: list[Callable[[], None]] = []
        self.ruined_by = ""

    def replay(self) -> None:
        for work in self.work:
            self._device.enqueue(work)


class SimDevice:
    """Streams over host memory. One thread drives it; it has no clock but the calls made on it.

    `schedule` is one of its own, fresh, or the name of a simple one that follows from `seed`: `"random"` lets queued
    work run at scheduling points with the seed's coin; `"late"` runs it only when a fence is waited for, the worst case
    for whoever reuses memory too early.

    `listener` hears the history, a line an event. Calls of the host are `queue STREAM N` (its N-th work), `order STREAM
    N OTHER M` (its N-th only waits for the other's M-th), `fence STREAM N`, `wait STREAM N`, `point` and `synchronize`;
    `run STREAM N` is work of the device, between two of them.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        schedule: Schedule | Literal["random", "late"] = "random",
        listener: Callable[[str], object] | None = None,
    ) -> None:
        if isinstance(schedule, str):
            if schedule not in _SIMPLE:
                raise ValueError(f"schedule={schedule!r}: choose 'random' or 'late', or pass a Schedule")
            schedule = _SIMPLE[schedule](seed)
        self.schedule: Schedule = schedule
        self._listener = listener
        self._streams: dict[str, SimStream] = {}
        self._current = self.stream("main")
        self._graph: SimGraph | None = None  # that is being captured

    def stream(self, name: str = "main") -> SimStream:
        """The stream of that name; made when first asked for."""
        return self._streams.setdefault(name, SimStream(name))

    @property
    def current_stream(self) -> SimStream:
        return self._current

    @contextmanager
    def use(self, stream: SimStream) -> Iterator[SimStream]:
        """Make `stream` the current one within the block."""
        before, self._current = self._current, stream
        try:
            yield stream
        finally:
            self._current = before

    def enqueue(self, work: Callable[[], None], *, stream: SimStream | None = None) -> SimFence:
        """Queue `work`; it runs late. An exception it raises surfaces from the call that ran it."""
        stream = stream or self._current
        if self._graph is not None and self._graph.stream is stream:
            self._graph.work.append(work)
            return SimFence(self, stream)
        return self._append(stream, work)

    @contextmanager
    def capture(self) -> Iterator[SimGraph]:
        """Record what is queued on the current stream within the block, instead of queueing it.

        As on CUDA, whatever `forbid` names ruins the graph: it raises RuntimeError there, and when the block ends.
        """
        self.forbid("another capture")
        graph = self._graph = SimGraph(self, self._current)
        try:
            yield graph
        finally:
            self._graph = None
        if graph.ruined_by:
            raise RuntimeError(f"the graph is ruined: there was {graph.ruined_by} within its capture")

    def is_capturing(self, stream: SimStream | None = None) -> bool:
        """Whether work queued on `stream` (default: current) is recorded now."""
        return self._graph is not None and self._graph.stream is (stream or self._current)

    def forbid(self, what: str) -> None:
        """Ruin the graph that is being captured, if there is one, by `what`; raises RuntimeError."""
        if self._graph is not None:
            self._graph.ruined_by = what
            raise RuntimeError(f"{what} is not permitted while a stream is capturing")

    def order(self, fence: SimFence, *, stream: SimStream | None = None) -> None:
        """Let later work of `stream` (default: current) wait until `fence` is done."""
        self.forbid("a stream wait")
        self._append(stream or self._current, fence)

    def record(self, stream: SimStream | None = None) -> SimFence:
        """The completion of all work queued so far on `stream` (default: current)."""
        self.forbid("a fence")
        fence = SimFence(self, stream or self._current)
        self.tell("fence", fence)
        return fence

    def advance(self) -> None:
        """A scheduling point: the schedule may let queued work run, any number of pieces."""
        self.tell("point")
        self._point()

    def synchronize(self) -> None:
        """Run everything; raises RuntimeError where streams wait for one another in a ring."""
        self.forbid("a synchronization")
        self.tell("synchronize")
        while self.run_one():
            pass
        stuck = [stream.name for stream in self._streams.values() if stream.queue]
        if stuck:
            raise RuntimeError(f"deadlock: streams {stuck} wait for fences that can never be done")

    def run_one(self) -> bool:
        """Run the head of one runnable stream, since the host waits; False where none can run."""
        ready = self._ready()
        return bool(ready) and self._run(self.schedule.choose(ready, host_waits=True))

    def tell(self, event: str, *fences: SimFence) -> None:
        """Add a line to the history: what happened, and the streams and numbers of the work it is about."""
        if self._listener is not None:
            self._listener(" ".join([event, *(f"{fence.stream} {fence.count}" for fence in fences)]))

    def _append(self, stream: SimStream, work: Callable[[], None] | SimFence) -> SimFence:
        stream.queue.append(work)
        stream.num_queued += 1
        fence = SimFence(self, stream)
        if isinstance(work, SimFence):
            self.tell("order", fence, work)
        else:
            self.tell("queue", fence)
        self._point()
        return fence

    def _point(self) -> None:
        if self._graph is None:
            while self._run(self.schedule.choose(self._ready(), host_waits=False)):
                pass

    def _ready(self) -> list[str]:
        return [name for name, stream in self._streams.items() if stream.runnable()]

    def _run(self, name: str | None) -> bool:
        """Run the head of a stream's queue; False without a stream: the host goes on."""
        if name is None:
            return False
        stream = self._streams[name]
        work = stream.queue.popleft()
        stream.num_run += 1
        if self._listener is not None:
            self._listener(f"run {name} {stream.num_run}")
        if not isinstance(work, SimFence):
            work()
        return True


_SIMPLE: dict[str, Callable[[int], Schedule]] = {"late": Late, "random": Random}
