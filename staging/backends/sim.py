"""A virtual accelerator: streams run queued work late, over host memory, in one thread and by one seed.

Nothing runs when it is queued. Work runs at *scheduling points* (each call that queues something, and
`advance()`) and while the host waits for a fence, in an order drawn from the seed that keeps each stream's
own order. The same seed and the same calls give the same history, so a race is found again every time.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch

from staging.backend import Backend, Block, Probe
from staging.elements import ElementWrites, scatter_elements
from staging.fence import Fence
from staging.packing import PackedWrites, scatter

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
        return self._stream.num_run >= self._count

    def wait(self, timeout_s: float | None = None) -> bool:
        """Run queued work in seeded order until done. Virtual time needs no limit: False means a deadlock."""
        while not self.done():
            if not self._device.run_one():
                return False
        return True


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
        return self._append(stream or self._current, work)

    def order(self, fence: SimFence, *, stream: SimStream | None = None) -> None:
        """Let later work of `stream` (default: current) wait until `fence` is done."""
        self._append(stream or self._current, fence)

    def record(self, stream: SimStream | None = None) -> SimFence:
        """The completion of all work queued so far on `stream` (default: current)."""
        return SimFence(self, stream or self._current)

    def advance(self) -> None:
        """A scheduling point: under the random schedule, each next piece of work runs by a coin's toss."""
        if self.schedule == "random":
            while self._random.random() < 0.4 and self.run_one():
                pass

    def synchronize(self) -> None:
        """Run everything; raises RuntimeError where streams wait for one another in a ring."""
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


class SimBackend(Backend):
    """`staging` on a SimDevice: device readers see host memory when they run, which is late."""

    name = "sim"

    def __init__(self, sim: SimDevice | None = None) -> None:
        self.sim = sim or SimDevice()
        self.device = torch.device("cpu")

    def probe(self) -> Probe:
        sim, block, seen = SimDevice(schedule="late"), self.allocate(8), []
        sim.enqueue(lambda: seen.append(int(block.device[0])))
        block.host[0] = 7
        sim.synchronize()
        reason = "a queued reader saw the write that followed it" if seen == [7] else f"wrote 7, read {seen}"
        return Probe(self.name, seen == [7], reason)

    def allocate(self, nbytes: int, *, mapped: bool = True, pinned: bool = True) -> Block:
        host = torch.zeros(nbytes, dtype=torch.uint8)
        return Block(host, host if mapped else torch.zeros_like(host), mapped)

    def allocate_target(self, nbytes: int, *, resident: bool = True) -> Block:
        return Block(torch.empty(0, dtype=torch.uint8), torch.zeros(nbytes, dtype=torch.uint8), mapped=False)

    def publish(self, block: Block, start: int, stop: int) -> None:
        if block.mapped:
            self.sim.advance()
            return
        if block.copied is not None:
            self.order(block.copied)
        if start < stop:
            source, twin = block.host[start:stop], block.device[start:stop]
            block.copied = self.sim.enqueue(lambda: _copy(source, twin))

    def copy(self, source: torch.Tensor, out: torch.Tensor) -> None:
        self.sim.enqueue(lambda: _copy(source, out))

    def apply(self, buffers: Sequence[torch.Tensor], writes: PackedWrites, targets: Sequence[torch.Tensor]) -> None:
        contents, arrays = [buffer.numpy() for buffer in buffers], [target.numpy() for target in targets]
        self.sim.enqueue(lambda: scatter(contents, writes, arrays))

    def apply_elements(self, block: Block, writes: ElementWrites, targets: Sequence[Block]) -> None:
        self.publish(block, 0, writes.nbytes)
        self.order_behind(targets)
        contents, arrays = block.device.numpy(), [target.device.numpy() for target in targets]
        fence = self.sim.enqueue(lambda: scatter_elements(contents, arrays))
        for used in (block, *targets):
            used.used(fence)

    def fence(self, stream: Any = None) -> Fence:
        return self.sim.record(stream)

    def order(self, fence: Fence) -> None:
        if not isinstance(fence, SimFence):
            raise TypeError(f"a sim stream cannot wait for {fence!r}: it is no fence of a SimDevice")
        if fence.stream != self.sim.current_stream.name:
            self.sim.order(fence)

    def note(self) -> str:
        return f"virtual accelerator, schedule {self.sim.schedule}"


def create(device: torch.device) -> SimBackend:
    """A backend on a new SimDevice; pass `SimBackend(sim)` to a manager to share one."""
    if device.type != "cpu":
        raise ValueError(f"sim works over host memory: ask for device 'cpu', not {str(device)!r}")
    return SimBackend()


def _copy(source: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(source)
