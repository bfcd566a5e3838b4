"""Packed writes on their way to the device: one slot and one launch for each apply."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from staging.backend import Block
from staging.fence import StepEnd
from staging.manager import DeviceMemoryManager
from staging.packing import PackedWrites
from staging.slots import SlotRing

_FIRST_NBYTES = 4096


class Launcher:
    """A ring of byte slots whose only reader is the apply itself, so each is fenced right after its launch."""

    def __init__(self, manager: DeviceMemoryManager, depth: int) -> None:
        self.manager = manager
        self._ring = SlotRing((_FIRST_NBYTES,), torch.uint8, depth, manager)

    def launch(self, writes: PackedWrites, targets: Sequence[Block]) -> None:
        """Queue one scatter of `writes` into `targets` on the current stream, behind their earlier applies."""
        manager, backend = self.manager, self.manager.backend
        manager.reclaim()
        slot = self._ring.acquire(writes.nbytes)
        slot.step = manager.current_step
        try:
            writes.write(slot.buffer.np[: writes.nbytes], [target.device.data_ptr() for target in targets])
            packed = slot.buffer.publish(0, writes.nbytes)
            for target in targets:
                for fence in target.fences():
                    backend.order(fence)
            backend.apply(packed, writes, [target.device for target in targets])
        finally:  # whatever was queued before an error still reads the slot
            fence = backend.fence()
            slot.end_lease(StepEnd(slot.step).close((fence,)))
            for target in targets:
                target.used(fence)
