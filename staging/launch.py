"""Staged writes on their way to the device: one slot and one launch for each apply."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from staging.backend import Block
from staging.elements import Array, ElementWrites, Layout, placed
from staging.fence import ENDED, Fence
from staging.manager import DeviceMemoryManager
from staging.packing import PackedWrites, pack
from staging.slots import Slot, SlotRing
from staging.write_log import WriteLog

_FIRST_NBYTES = 4096
_PARALLEL_NBYTES = 1 << 18  # torch copies by several threads


class SlotWrites(ElementWrites):
    """Packed elements in a slot."""

    __slots__ = ("slot",)

    def __init__(self, slot: Slot) -> None:
        super().__init__(slot.buffer.np)
        self.slot = slot


class PackedBatch:
    """Elements that lie in a slot already, until the launch that reads them; `logs[i]` are of target i."""

    __slots__ = ("_addresses", "_launcher", "logs", "writes")

    def __init__(self, launcher: Launcher, writes: SlotWrites, logs: list[WriteLog], addresses: Sequence[int]) -> None:
        self._launcher, self.writes, self.logs, self._addresses = launcher, writes, logs, addresses
        for log in logs:
            log.batch = self
            log.idle.clear()

    def spill(self) -> None:
        """Note the elements in their logs, which have no other writes, and let the slot go."""
        self.release()
        for target, offsets, values in placed(self.writes, self._addresses):
            if len(offsets):
                self.logs[target].note((offsets, None), values)
        self._launcher.drop([self.writes.slot])

    def release(self) -> None:
        """Forget it in the logs."""
        for log in self.logs:
            log.batch = None
            log.idle.append(None)


class Launcher:
    """A ring of byte slots whose only reader is the apply itself, so each is fenced right after its launch.

    Large contents are stashed: they get a slot of their own as soon as they are staged. Alone, they are sent from there
    by the copy engine; among others, the kernel reads them in place (as fast, within a tenth, and in one launch).
    """

    def __init__(self, manager: DeviceMemoryManager, depth: int, name: str) -> None:
        self.manager = manager
        self._name = name
        self._depth = depth
        self._rings: dict[str, SlotRing] = {}

    def launch(self, logs: list[WriteLog], targets: Sequence[Block], flat: Layout) -> None:
        """Queue one launch that puts what `logs` hold into `targets`, of which `flat` is the `flat_layout`, on the
        current stream, behind earlier applies.

        The logs keep their writes; a batch is given back.
        """
        batch = logs[0].batch
        if isinstance(batch, PackedBatch) and batch.logs == logs:
            self.launch_batch(batch, targets)
            return
        for log in logs:
            if log.batch is not None or log.offsets or log.itemsize != logs[0].itemsize:
                break
        else:
            writes = self._pack_elements(logs, flat)
            try:
                self.launch_elements(writes, targets)
            except BaseException:
                writes.slot.end_lease(ENDED)
                raise
            return
        self.manager.reclaim()
        if len(logs) == 1 and logs[0].is_one_stash():
            self._launch_copy(logs[0], targets[0])
        else:
            self._launch_runs(logs, targets)

    def launch_batch(self, batch: PackedBatch, targets: Sequence[Block]) -> None:
        """Queue the launch of a batch, which is given back then; `targets` are those of its logs."""
        self.manager.refuse_capture()
        self.manager.reclaim()
        self.launch_elements(batch.writes, targets)
        batch.release()

    def launch_elements(self, writes: SlotWrites, targets: Sequence[Block]) -> None:
        """Queue the launch of packed elements and end the slot's lease; if it raises, the lease goes on."""
        block = writes.slot.buffer.block
        try:
            self.manager.backend.apply_elements(block, writes, targets)
        except BaseException:
            _used(self.manager.backend.fence(), (block, *targets))  # whatever was queued still reads the slot
            raise
        block.end = ENDED

    def pack(self, layout: Layout, keys: Array, values: Array) -> SlotWrites:
        """Elements in a slot, to be launched or dropped."""
        writes = self._room(layout, len(keys))
        writes.fill(keys, values)
        return writes

    def _room(self, layout: Layout, num: int) -> SlotWrites:
        """A slot in which all but keys and values of so many elements is written."""
        self.manager.reclaim()
        slot = self._slot("packed", layout.nbytes(num))
        writes: SlotWrites | None = slot.face
        if writes is None:
            writes = slot.face = SlotWrites(slot)
        writes.open(num, layout)
        return writes

    def stash(self, values: Array) -> Slot:
        """A slot that holds flat `values`, until the launch that reads them."""
        self.manager.reclaim()
        raw, nbytes = values.view("u1"), values.nbytes
        slot = self._slot("stashed", nbytes)
        try:
            if nbytes >= _PARALLEL_NBYTES and raw.flags.writeable:  # torch warns of memory that is not
                slot.buffer.cpu[:nbytes].copy_(torch.from_numpy(raw))
            else:
                slot.buffer.np[:nbytes] = raw
            self.manager.backend.publish(slot.buffer.block, 0, nbytes)
        except BaseException:
            self.drop([slot])
            raise
        return slot

    def drop(self, slots: Sequence[Slot]) -> None:
        """Give slots back whose contents are not wanted any more; queued work on them is known to their blocks."""
        for slot in slots:
            slot.end_lease(ENDED)

    def _pack_elements(self, logs: Sequence[WriteLog], layout: Layout) -> SlotWrites:
        """The elements of logs that hold nothing else: keys are flat offsets."""
        numbers: list[Any] = []
        for log in logs:
            numbers += log.elements
        num, codes = len(numbers), ""
        for log in logs:
            numbers += log.elements.values()
            codes += f"{len(log.elements)}{log.code}"
        writes = self._room(layout, num)
        struct.pack_into(f"{num}q{codes}", writes.packed, 8 * layout.keys_at, *numbers)
        keys, first = writes.keys, len(logs[0].elements)
        for target, log in enumerate(logs[1:], 1):
            last = first + len(log.elements)
            keys[first:last] += target * layout.span
            first = last
        return writes

    def _launch_copy(self, log: WriteLog, target: Block) -> None:
        """One large write: the copy engine needs no header and no kernel."""
        backend, slot, size = self.manager.backend, log.stashed[0][1], log.itemsize
        self.manager.refuse_capture()
        block: Block = slot.buffer.block
        backend.order_behind((target, block))
        try:
            backend.move(block, target, log.offsets[0] * size, log.lengths[0] * size)
        finally:  # whatever was queued before an error still reads the slot
            _used(backend.fence(), (block, target))
        slot.end_lease(ENDED)

    def _launch_runs(self, logs: Sequence[WriteLog], targets: Sequence[Block]) -> None:
        for log in logs:
            log.gather()
        backend, writes = self.manager.backend, pack(logs)
        slot = self._slot("packed", writes.nbytes)
        stashes: list[Slot] = list(writes.stashes)
        blocks = [used.buffer.block for used in (slot, *stashes)]
        try:
            _write(writes, slot, blocks, targets)
            backend.publish(blocks[0], 0, writes.nbytes)
            backend.order_behind((*targets, *blocks[1:]))
            backend.apply([block.device for block in blocks], writes, [target.device for target in targets])
        finally:  # whatever was queued before an error still reads the slots
            _used(backend.fence(), (*blocks, *targets))
            slot.end_lease(ENDED)
        self.drop(stashes)

    def _slot(self, what: str, nbytes: int) -> Slot:
        ring = self._rings.get(what)
        if ring is None:
            ring = self._rings[what] = SlotRing(
                (_FIRST_NBYTES,), torch.uint8, self._depth, self.manager, name=self._name
            )
        slot = ring.acquire_last(nbytes)
        slot.step = self.manager.current_step
        return slot


def _used(fence: Fence, blocks: Iterable[Block]) -> None:
    for block in blocks:
        block.used(fence)


def _write(writes: PackedWrites, slot: Slot, blocks: Sequence[Block], targets: Sequence[Block]) -> None:
    writes.write(
        slot.buffer.np[: writes.nbytes],
        targets=[target.address for target in targets],
        packed=blocks[0].address,
        stashes=[block.address for block in blocks[1:]],
    )


def flat_layout(logs: Sequence[WriteLog], addresses: Sequence[int]) -> Layout:
    """Of elements that go by their flat offsets, as if each tensor were one column; all are of one size."""
    size = logs[0].itemsize if logs else 1
    span = max((math.prod(log.shape) for log in logs), default=0)
    return Layout([number for address in addresses for number in (address, size)], span=span, width=1, itemsize=size)
