"""`staging` on a virtual accelerator, which runs queued work late: see SimDevice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from staging.backend import Backend, Block, Probe
from staging.backends._schedules import Exhaustive, Late, Pct, Random, Schedule
from staging.backends._sim_device import SimDevice, SimFence, SimGraph, SimStream
from staging.elements import ElementWrites, packed_in, scatter_elements
from staging.fence import Fence
from staging.packing import PackedWrites, scatter

__all__ = ["Exhaustive", "Late", "Pct", "Random", "Schedule"]
__all__ += ["SimBackend", "SimDevice", "SimFence", "SimGraph", "SimStream", "create"]


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
        self.sim.forbid("an allocation")
        host = torch.zeros(nbytes, dtype=torch.uint8)
        return Block(host, host if mapped else torch.zeros_like(host), mapped)

    def allocate_target(self, nbytes: int, *, resident: bool = True) -> Block:
        self.sim.forbid("an allocation")
        return Block(torch.empty(0, dtype=torch.uint8), torch.zeros(nbytes, dtype=torch.uint8), mapped=False)

    def publish(self, block: Block, start: int, stop: int) -> None:
        self.sim.forbid("a publish")
        if block.mapped:
            self.sim.advance()
            return
        if block.copied is not None:
            self.order(block.copied)
        if start < stop:
            source, twin = block.host[start:stop], block.device[start:stop]
            block.copied = self.sim.enqueue(lambda: _copy(source, twin))

    def copy(self, source: torch.Tensor, out: torch.Tensor) -> None:
        self.sim.forbid("a copy")
        self.sim.enqueue(lambda: _copy(source, out))

    def apply(self, buffers: Sequence[torch.Tensor], writes: PackedWrites, targets: Sequence[torch.Tensor]) -> None:
        self.sim.forbid("an apply")
        contents, arrays = [buffer.numpy() for buffer in buffers], [target.numpy() for target in targets]
        self.sim.enqueue(lambda: scatter(contents, writes, arrays))

    def apply_elements(self, block: Block, writes: ElementWrites, targets: Sequence[Block]) -> None:
        self.publish(block, 0, writes.nbytes)
        self.order_behind(targets)
        contents, arrays = block.device.numpy(), [target.device.numpy() for target in targets]
        addresses = [target.address for target in targets]
        fence = self.sim.enqueue(lambda: scatter_elements(packed_in(contents), arrays, addresses))
        for used in (block, *targets):
            used.used(fence)

    def move(self, source: Block, target: Block, start: int, nbytes: int) -> None:
        self.copy(source.device[:nbytes], target.device[start : start + nbytes])

    def fence(self, stream: Any = None) -> Fence:
        return self.sim.record(stream)

    def order(self, fence: Fence) -> None:
        if not isinstance(fence, SimFence):
            raise TypeError(f"a sim stream cannot wait for {fence!r}: it is no fence of a SimDevice")
        if fence.stream != self.sim.current_stream.name:
            self.sim.order(fence)

    def is_capturing(self, stream: Any = None) -> bool:
        return self.sim.is_capturing(stream)

    def note(self) -> str:
        return f"virtual accelerator, schedule {self.sim.schedule.name}"


def create(device: torch.device) -> SimBackend:
    """A backend on a new SimDevice; pass `SimBackend(sim)` to a manager to share one."""
    if device.type != "cpu":
        raise ValueError(f"sim works over host memory: ask for device 'cpu', not {str(device)!r}")
    return SimBackend()


def _copy(source: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(source)
