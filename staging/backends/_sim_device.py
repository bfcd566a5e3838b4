"""A virtual accelerator: streams run queued work late, over host memory, in one thread and by one seed.

Nothing runs when it is queued. Work runs at *scheduling points* (each call that queues something, and
`advance()`) and while the host waits for a fence, in an order drawn from the seed that keeps each stream's
own order. The same seed and the same calls give the same history, so a race is found again every time.
Work can be captured as a graph, which what a device cannot record ruins, as on a real one.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

Schedule = Literal["random", "late"]


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

    __slots__ = ("_count", "_device", "_stream")

    def __init__(self, device: SimDevice, stream: SimStream) -> None:
        self._device = device
        self._stream = stream
        self._count = stream.num_queued

    @property
    def stream(self) -> str:
        return self._stream.name

    def done(self) -> bool:
        self._device.forbid("the query of a fence")
        return self._stream.num_run >= self._count

    def wait(self, timeout_s: float | None = None) -> bool:
        """Run queued work in seeded order until done. Virtual time needs no limit: False means a deadlock."""
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

    `schedule="random"` lets queued work run at scheduling points with the seed's coin; `"late"` runs it only
    when a fence is waited for, the worst case for whoever reuses memory too early.
    """

    def __init__(self, seed: int = 0, *, schedule: Schedule = "random") -> None:
        if schedule not in ("random", "late"):
            raise ValueError(f"schedule={schedule!r}: choose 'random' or 'late'")
        self.schedule = schedule
        self._random = random.Random(seed)
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
        return SimFence(self, stream or self._current)

    def advance(self) -> None:
        """A scheduling point: under the random schedule, each next piece of work runs by a coin's toss."""
        if self.schedule == "random" and self._graph is None:
            while self._random.random() < 0.4 and self.run_one():
                pass

    def synchronize(self) -> None:
        """Run everything; raises RuntimeError where streams wait for one another in a ring."""
        self.forbid("a synchronization")
        while self.run_one():
            pass
        stuck = [stream.name for stream in self._streams.values() if stream.queue]
        if stuck:
            raise RuntimeError(f"deadlock: streams {stuck} wait for fences that can never be done")

    def run_one(self) -> bool:
        """Run the head of one runnable stream, drawn by the seed; False where none can run."""
        ready = [stream for stream in self._streams.values() if stream.runnable()]
        if not ready:
            return False
        stream = ready[0] if len(ready) == 1 else self._random.choice(ready)
        work = stream.queue.popleft()
        stream.num_run += 1
        if not isinstance(work, SimFence):
            work()
        return True

    def _append(self, stream: SimStream, work: Callable[[], None] | SimFence) -> SimFence:
        stream.queue.append(work)
        stream.num_queued += 1
        fence = SimFence(self, stream)
        self.advance()
        return fence
