"""Packed writes on their way to the device: one slot and one launch for each apply."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from staging.fence import Fence, StepEnd
from staging.manager import DeviceMemoryManager
from staging.packing import PackedWrites
from staging.slots import SlotRing

_FIRST_NBYTES = 4096


class Launcher:
    """A ring of byte slots whose only reader is the apply itself, so each is fenced right after its launch."""

    def __init__(self, manager: DeviceMemoryManager, depth: int) -> None:
        self.manager = manager
        self._ring = SlotRing((_FIRST_NBYTES,), torch.uint8, depth, manager)

    def launch(self, writes: PackedWrites, targets: Sequence[torch.Tensor], after: Sequence[Fence]) -> Fence:
        """Queue one scatter of `writes` into the flat `targets` on the current stream, behind the fences `after`
        of other streams; returns the fence of its end."""
        manager = self.manager
        manager.before_publish()
        slot = self._ring.acquire(writes.nbytes)
        slot.step = manager.current_step
        slot.end = StepEnd(slot.step).close(())  # free again if the launch below fails
        writes.write(slot.buffer.np[: writes.nbytes], [target.data_ptr() for target in targets])
        try:
            packed = slot.buffer.publish(0, writes.nbytes)
            for fence in after:
                manager.backend.order(fence)
            manager.backend.apply(packed, writes, targets)
            fence = manager.backend.fence()
        except RuntimeError as error:
            manager.raise_if_lost(error)
            raise
        slot.end = StepEnd(slot.step).close((fence,))
        return fence
