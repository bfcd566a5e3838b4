"""A ring of slots: the next one in rotation, free to be written or made so by the guard."""

from __future__ import annotations

import math
import time
import weakref
from collections import deque
from collections.abc import Iterable, Sequence

import torch

from staging.accounting import Accounting
from staging.buffer import UvaBuffer
from staging.dtypes import nbytes_of
from staging.errors import SlotInUseError
from staging.fence import Fence, StepEnd, wait_all
from staging.manager import DeviceMemoryManager, Guard, check_growth

_NEVER_USED = StepEnd(-1).close(())


class Slot:
    """One entry of a ring: its buffer, and what must be done before it may be written again."""

    __slots__ = ("buffer", "end", "index", "num_uses", "step")

    def __init__(self, index: int, buffer: UvaBuffer) -> None:
        self.index = index
        self.buffer = buffer
        self.end: StepEnd | None = _NEVER_USED  # None while its lease has not ended
        self.step = -1
        self.num_uses = 0

    @property
    def num_rows(self) -> int:
        return self.buffer.shape[0]

    def is_leased(self) -> bool:
        """Whether readers may still be launched: its lease goes on, or ends with the step that is open."""
        return self.end is None or not self.end.closed

    def readers(self) -> tuple[Fence, ...]:
        """The fences of those who read it on the device."""
        ended = () if self.end is None else self.end.fences
        return (*ended, *self.buffer.readers.values()) if self.buffer.readers else ended

    def pending(self) -> Iterable[Fence]:
        """The fences that a host write must wait for: the readers' where they read host memory in place,
        else the last copy's out of it."""
        block = self.buffer.block
        if block.mapped:
            return self.readers()
        return (block.copied,) if block.copied is not None else ()


class SlotRing:
    """Slots used in turn, oldest first; `acquire` hands out the next one, ready to be written.

    A guarded ring may own one slot more than `depth`, so that `depth` steps in flight never wait. Growth of
    a slot allocates first and drops the old buffer, which its manager frees when queued readers are done.
    """

    def __init__(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        depth: int,
        manager: DeviceMemoryManager,
        guard: Guard | None = None,
    ) -> None:
        self.shape, self.dtype, self.depth, self.manager = tuple(shape), dtype, depth, manager
        self.guard: Guard = manager.guard if guard is None else guard
        self._growth = check_growth(manager.growth)
        slots = [Slot(index, self._buffer(self.shape[0], self.shape[0])) for index in range(depth)]
        self._slots = deque(slots[1:] + slots[:1])  # as upstream, the first publish takes slot 1
        manager.accounting.slots.add(depth)
        weakref.finalize(self, _forget, manager.accounting, self._slots).atexit = False

    def __len__(self) -> int:
        return len(self._slots)

    def acquire(self, num_rows: int) -> Slot:
        """The next slot, with room for `num_rows` and no reader left; raises SlotInUseError without rotating."""
        slot = self._slots[0]
        if self.guard != "trust":
            slot = self._guarded(slot)
        if num_rows > slot.num_rows:
            self._grow(slot, num_rows)
        self._slots.rotate(-1)
        slot.end = None
        slot.num_uses += 1
        slot.buffer.readers.clear()
        return slot

    def _guarded(self, slot: Slot) -> Slot:
        if slot.is_leased():
            if len(self._slots) > self.depth and self.guard == "raise":
                raise SlotInUseError(f"{self._name(slot)} belongs to the step that is open; end the step first")
            return self._add()
        if not all(fence.done() for fence in slot.pending()):
            if len(self._slots) <= self.depth or self.guard == "grow":
                return self._add()
            if self.guard == "raise":
                raise SlotInUseError(f"{self._name(slot)} is still read; retry later, or use guard='wait'")
            self._wait(slot)
        if not slot.buffer.block.mapped:
            for fence in slot.readers():
                self.manager.backend.order(fence)  # the twin's next copy comes after readers on other streams
        return slot

    def _wait(self, slot: Slot) -> None:
        begin = time.perf_counter_ns()
        late = wait_all(slot.pending(), self.manager.wait_timeout_s)
        self.manager.accounting.waits += 1
        self.manager.accounting.wait_ns += time.perf_counter_ns() - begin
        if late is not None:
            raise SlotInUseError(
                f"{self._name(slot)} is still read on stream {late.stream} after wait_timeout_s="
                f"{self.manager.wait_timeout_s}; nothing was published"
            )

    def _add(self) -> Slot:
        """A fresh slot in front of the rotation."""
        slot = Slot(len(self._slots), self._buffer(self.shape[0], self.shape[0]))
        self._slots.appendleft(slot)
        self.manager.accounting.slots.add(1)
        return slot

    def _grow(self, slot: Slot, num_rows: int) -> None:
        slot.buffer = self._buffer(_grown(self._growth, num_rows, slot.num_rows), num_rows)
        self.manager.accounting.growths += 1

    def _buffer(self, num_rows: int, requested_rows: int) -> UvaBuffer:
        requested = nbytes_of((requested_rows, *self.shape[1:]), self.dtype)
        return UvaBuffer((num_rows, *self.shape[1:]), self.dtype, manager=self.manager, requested=requested)

    def _name(self, slot: Slot) -> str:
        return f"slot {slot.index} of a pool of {len(self._slots)} (published in step {slot.step})"


def _forget(accounting: Accounting, slots: deque[Slot]) -> None:
    accounting.slots.remove(len(slots))


def _grown(growth: str | float, needed: int, rows: int) -> int:
    if growth == "exact":
        return needed
    if growth == "pow2":
        return 1 << (needed - 1).bit_length()
    return max(needed, math.ceil(rows * float(growth)))
