"""Staged writes on their way to the device: one slot and one launch for each apply."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from staging.backend import Block
from staging.buffer import UvaBuffer
from staging.elements import BITS, Array, ElementWrites, nbytes_of_elements, placed
from staging.exact import naturals
from staging.fence import ENDED, Fence
from staging.manager import DeviceMemoryManager
from staging.packing import PackedWrites, pack
from staging.slots import Slot, SlotRing
from staging.write_log import WriteLog

_FIRST_NBYTES = 4096
_PARALLEL_NBYTES = 1 << 18  # torch copies by several threads


class PackedBatch:
    """Elements that lie in a slot already, until the launch that reads them; `logs[i]` are of target i."""

    __slots__ = ("_addresses", "_launcher", "logs", "slot", "writes")

    def __init__(
        self, launcher: Launcher, slot: Slot, writes: ElementWrites, logs: list[WriteLog], addresses: Sequence[int]
    ) -> None:
        self._launcher, self.slot, self.writes, self.logs, self._addresses = launcher, slot, writes, logs, addresses
        for log in logs:
            log.batch = self
            log.idle.clear()

    def spill(self) -> None:
        """Note the elements in their logs, which have no other writes, and let the slot go."""
        self.release()
        for target, offsets, values in placed(self.writes, self._addresses):
            if len(offsets):
                self.logs[target].note((offsets, None), values)
        self._launcher.drop([self.slot])

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
        self._elements: dict[int, tuple[UvaBuffer, ElementWrites]] = {}  # how each packed slot is written, by its index

    def launch(self, logs: Sequence[WriteLog], targets: Sequence[Block]) -> None:
        """Queue one launch that puts what `logs` hold into `targets` on the current stream, behind earlier applies.

        The logs keep their writes; a batch is given back.
        """
        batch = logs[0].batch
        if isinstance(batch, PackedBatch) and batch.logs == logs:
            self.launch_batch(batch, targets)
            return
        self.manager.reclaim()
        if len(logs) == 1 and logs[0].is_one_stash():
            self._launch_copy(logs[0], targets[0])
            return
        for log in logs:
            if log.batch is not None or log.offsets or log.itemsize != logs[0].itemsize:
                self._launch_runs(logs, targets)
                return
        slot, writes = self._pack_elements(logs, targets)
        try:
            self.launch_elements(slot, writes, targets)
        except BaseException:
            slot.end_lease(ENDED)
            raise

    def launch_batch(self, batch: PackedBatch, targets: Sequence[Block]) -> None:
        """Queue the launch of a batch, which is given back then; `targets` are those of its logs."""
        self.manager.refuse_capture()
        self.manager.reclaim()
        self.launch_elements(batch.slot, batch.writes, targets)
        batch.release()

    def launch_elements(self, slot: Slot, writes: ElementWrites, targets: Sequence[Block]) -> None:
        """Queue the launch of packed elements and end the slot's lease; if it raises, the lease goes on."""
        block = slot.buffer.block
        try:
            self.manager.backend.apply_elements(block, writes, targets)
        except BaseException:
            _used(self.manager.backend.fence(), (block, *targets))  # whatever was queued still reads the slot
            raise
        block.end = ENDED

    def room(self, num: int, num_targets: int, span: int, width: int, itemsize: int) -> tuple[Slot, ElementWrites]:
        """A slot with room for elements, to be launched or dropped."""
        self.manager.reclaim()
        slot = self._slot("packed", nbytes_of_elements(num, num_targets, itemsize))
        buffer, writes = self._elements.get(slot.index, (None, None))
        if writes is None or buffer is not slot.buffer:
            writes = ElementWrites(slot.buffer.np)
            self._elements[slot.index] = slot.buffer, writes
        writes.open(num, num_targets, span, width, itemsize)
        return slot, writes

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

    def _pack_elements(self, logs: Sequence[WriteLog], targets: Sequence[Block]) -> tuple[Slot, ElementWrites]:
        """The elements of logs that hold nothing else: keys are flat offsets."""
        counts, span, size = [len(log.elements) for log in logs], max(map(_size, logs)), logs[0].itemsize
        slot, writes = self.room(sum(counts), len(logs), span, 1, size)
        if len(logs) == 1:
            writes.write_header_and_target(targets[0].address, size)
        else:
            writes.write_header()
            writes.table[:] = [number for target in targets for number in (target.address, size)]
        keys, values, first = writes.keys, writes.values(BITS[size]), 0
        for target, (log, count) in enumerate(zip(logs, counts, strict=True)):
            last = first + count
            keys[first:last] = naturals(list(log.elements))
            if target:
                keys[first:last] += target * span
            values[first:last] = log.element_values().view(values.dtype)
            first = last
        return slot, writes

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


def _size(log: WriteLog) -> int:
    return log.shape[0] if len(log.shape) == 1 else log.shape[0] * log.shape[1]
