"""The host is the device: everything runs at once, in the order of the calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from staging.backend import Backend, Block, Probe
from staging.elements import ElementWrites, packed_in, scatter_elements
from staging.fence import Fence
from staging.packing import PackedWrites, scatter


class _Passed:
    """A fence of a device that queues nothing: always done."""

    stream = "host"

    def done(self) -> bool:
        return True

    def wait(self, timeout_s: float | None = None) -> bool:
        return True


_PASSED = _Passed()


class CpuBackend(Backend):
    """Device readers run when they are called, on the memory that the host wrote."""

    name = "cpu"

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def probe(self) -> Probe:
        block = self.allocate(8)
        block.host[0] = 7
        seen = int(block.device[0])
        return Probe(self.name, seen == 7, "the host is the device" if seen == 7 else f"wrote 7, read {seen}")

    def allocate(self, nbytes: int, *, mapped: bool = True, pinned: bool = True) -> Block:
        host = torch.zeros(nbytes, dtype=torch.uint8)
        return Block(host, host if mapped else torch.zeros_like(host), mapped)

    def allocate_target(self, nbytes: int, *, resident: bool = True) -> Block:
        return Block(torch.empty(0, dtype=torch.uint8), torch.zeros(nbytes, dtype=torch.uint8), mapped=False)

    def publish(self, block: Block, start: int, stop: int) -> None:
        if not block.mapped:
            block.device[start:stop].copy_(block.host[start:stop])

    def copy(self, source: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(source)

    def apply(self, buffers: Sequence[torch.Tensor], writes: PackedWrites, targets: Sequence[torch.Tensor]) -> None:
        scatter([buffer.numpy() for buffer in buffers], writes, [target.numpy() for target in targets])

    def apply_elements(self, block: Block, writes: ElementWrites, targets: Sequence[Block]) -> None:
        if not block.mapped:
            self.publish(block, 0, writes.nbytes)
            writes = packed_in(block.device.numpy())
        scatter_elements(writes, [target.device.numpy() for target in targets], [target.address for target in targets])

    def move(self, source: Block, target: Block, start: int, nbytes: int) -> None:
        target.device.numpy()[start : start + nbytes] = source.device.numpy()[:nbytes]

    def fence(self, stream: Any = None) -> Fence:
        return _PASSED

    def order(self, fence: Fence) -> None:
        fence.wait()


def create(device: torch.device) -> CpuBackend:
    """The backend of device `cpu`; raises ValueError for any other."""
    if device.type != "cpu":
        raise ValueError(f"the cpu backend serves device 'cpu', not {str(device)!r}")
    return CpuBackend()
