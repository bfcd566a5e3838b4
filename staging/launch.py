"""Packed writes on their way to the device: one slot and one launch for each apply."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from staging.backend import Block
from staging.fence import StepEnd
from staging.manager import DeviceMemoryManager
from staging.packing import Array, Log, pack
from staging.slots import Slot, SlotRing

_FIRST_NBYTES = 4096


class Launcher:
    """A ring of byte slots whose only reader is the apply itself, so each is fenced right after its launch.

    Large contents are stashed: they get a slot of their own as soon as they are staged, and are read from there.
    """

    def __init__(self, manager: DeviceMemoryManager, depth: int) -> None:
        self.manager = manager
        self._depth = depth
        self._rings: dict[str, SlotRing] = {}

    def launch(self, logs: Sequence[Log], targets: Sequence[Block]) -> None:
        """Queue one scatter of what `logs` hold into `targets` on the current stream, behind earlier applies."""
        backend = self.manager.backend
        self.manager.reclaim()
        writes = pack(logs)
        slot = self._slot("packed", writes.nbytes)
        stashes: list[Slot] = list(writes.stashes)
        blocks = [used.buffer.block for used in (slot, *stashes)]
        try:
            writes.write(
                slot.buffer.np[: writes.nbytes],
                targets=[target.address for target in targets],
                packed=blocks[0].address,
                stashes=[block.address for block in blocks[1:]],
            )
            backend.publish(blocks[0], 0, writes.nbytes)
            for target in (*targets, *blocks[1:]):
                for fence in target.fences():
                    backend.order(fence)
            backend.apply([block.device for block in blocks], writes, [target.device for target in targets])
        finally:  # whatever was queued before an error still reads the slots
            fence = backend.fence()
            slot.end_lease(StepEnd(slot.step).close((fence,)))
            for touched in (*targets, *blocks[1:]):
                touched.used(fence)
        self.drop(stashes)

    def stash(self, values: Array) -> Slot:
        """A slot that holds flat `values`, until the launch that reads them."""
        self.manager.reclaim()
        slot = self._slot("stashed", values.nbytes)
        slot.buffer.np[: values.nbytes] = values.view("u1")
        self.manager.backend.publish(slot.buffer.block, 0, values.nbytes)
        return slot

    def drop(self, stashes: Sequence[Slot]) -> None:
        """Give slots back whose contents are not wanted any more; queued work on them is known to their blocks."""
        for slot in stashes:
            slot.end_lease(StepEnd(slot.step).close(()))

    def _slot(self, what: str, nbytes: int) -> Slot:
        ring = self._rings.get(what)
        if ring is None:
            ring = self._rings[what] = SlotRing((_FIRST_NBYTES,), torch.uint8, self._depth, self.manager)
        slot = ring.acquire(nbytes)
        slot.step = self.manager.current_step
        return slot
