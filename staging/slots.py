"""A ring of slots: the next one in rotation, free to be written or made so by the guard."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from staging.accounting import Accounting
from staging.backend import Backend, Block
from staging.buffer import UvaBuffer
from staging.dtypes import nbytes_of
from staging.errors import MemoryLimitError, SlotInUseError
from staging.exact import Array, exact
from staging.fence import ENDED, StepEnd, wait_all
from staging.manager import DeviceMemoryManager
from staging.policies import Guard, check_guard, grown


class Slot:
    """One entry of a ring and its buffer. While it is leased its block has no end; `num_uses` tells leases apart.

    `face` is what the ring's owner makes of the buffer, once for each buffer: None again when the slot has grown.
    """

    __slots__ = ("buffer", "face", "index", "num_uses", "step")

    def __init__(self, index: int, buffer: UvaBuffer) -> None:
        self.index = index
        self.buffer = buffer
        self.buffer.block.end = ENDED  # never used: nobody reads it
        self.face: Any = None
        self.step = -1
        self.num_uses = 0

    @property
    def num_rows(self) -> int:
        return self.buffer.shape[0]

    def is_leased(self) -> bool:
        """Whether readers may still be launched: its lease goes on, or ends with the step that is open."""
        end = self.buffer.block.end
        return end is None or not end.closed

    def end_lease(self, end: StepEnd) -> None:
        """Readers of the slot are launched before `end`."""
        self.buffer.block.end = end


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
        *,
        name: str,
    ) -> None:
        self.name = name
        self._is_capturing = manager.backend.is_capturing
        self.shape, self.dtype, self.depth, self.manager = tuple(shape), dtype, depth, manager
        self.guard: Guard = manager.guard if guard is None else check_guard(guard)
        slots = [Slot(index, self._buffer(self.shape[0], self.shape[0])) for index in range(depth)]
        self._slots = deque(slots[1:] + slots[:1])  # as upstream, the first publish takes slot 1
        manager.accounting.add_slots(depth, name)
        weakref.finalize(self, _forget, manager.accounting, self._slots, name).atexit = False

    def __len__(self) -> int:
        return len(self._slots)

    def acquire(self, num_rows: int) -> Slot:
        """The next slot, with room for `num_rows` and no reader left; raises SlotInUseError, MemoryLimitError, or
        StagingError while capturing a graph, without rotating."""
        if self._is_capturing():
            self.manager.backend.refuse_capture()
        return self.take(num_rows)

    def take(self, num_rows: int) -> Slot:
        """As `acquire`, for a caller that has refused captures already."""
        slot = self._slots[0]
        if self.guard != "trust" and not slot.buffer.block.is_writable():
            slot = self._guarded(slot, num_rows)
        if num_rows > slot.num_rows:
            self._grow(slot, num_rows)
        self._slots.rotate(-1)
        slot.num_uses += 1
        slot.buffer.block.lease()
        return slot

    def acquire_last(self, num_rows: int) -> Slot:
        """The slot that was used last, if it is free already and large enough: it lies in the processor's caches. Else
        the next one; raises as `acquire`."""
        slot = self._slots[-1]
        block = slot.buffer.block
        if num_rows > slot.buffer.shape[0] or not block.is_writable() or self._is_capturing():
            return self.acquire(num_rows)
        slot.num_uses += 1
        block.lease()
        return slot

    def _guarded(self, slot: Slot, num_rows: int) -> Slot:
        if slot.is_leased():
            if len(self._slots) > self.depth and self.guard == "raise":
                raise SlotInUseError(f"{self._name(slot)} belongs to the step that is open; end the step first")
            return self._add(num_rows)
        block = slot.buffer.block
        if not all(fence.done() for fence in block.host_fences()):
            if len(self._slots) <= self.depth or self.guard == "grow":
                try:
                    return self._add(num_rows)
                except MemoryLimitError:
                    if self.guard == "grow":
                        raise
            if self.guard == "raise":
                raise SlotInUseError(f"{self._name(slot)} is still read; retry later, or use guard='wait'")
            await_readers(block, self._name(slot), self.manager, self.name)
        order_behind(block, self.manager.backend)
        return slot

    def take_out(self, slot: Slot) -> None:
        """Put a fresh slot in the place of `slot`, which is its holder's from now on; raises MemoryLimitError,
        changing nothing."""
        fresh = Slot(slot.index, self._buffer(slot.num_rows, slot.num_rows))
        self._slots[self._slots.index(slot)] = fresh
        self.manager.accounting.add_slots(1, self.name)

    def _add(self, num_rows: int) -> Slot:
        """A fresh slot in front of the rotation."""
        rows = (
            self.shape[0]
            if num_rows <= self.shape[0]
            else grown(self.manager.growth, needed=num_rows, rows=self.shape[0])
        )
        slot = Slot(len(self._slots), self._buffer(rows, max(num_rows, self.shape[0])))
        self._slots.appendleft(slot)
        self.manager.accounting.add_slots(1, self.name)
        return slot

    def _grow(self, slot: Slot, num_rows: int) -> None:
        slot.buffer = self._buffer(grown(self.manager.growth, needed=num_rows, rows=slot.num_rows), num_rows)
        slot.face = None
        self.manager.accounting.grew(self.name)

    def _buffer(self, num_rows: int, requested_rows: int) -> UvaBuffer:
        buffer = UvaBuffer((num_rows, *self.shape[1:]), self.dtype, name=self.name, manager=self.manager)
        self.manager.accounting.request(buffer.block, nbytes_of((requested_rows, *self.shape[1:]), self.dtype))
        return buffer

    def _name(self, slot: Slot) -> str:
        return f"slot {slot.index} of a pool of {len(self._slots)} named {self.name!r} (published in step {slot.step})"


def await_readers(block: Block, what: str, manager: DeviceMemoryManager, name: str) -> None:
    """Wait until the host may write `block`, and count the wait under `name`; raises SlotInUseError with `what`
    after the manager's `wait_timeout_s`."""
    begin = time.perf_counter_ns()
    late = wait_all(block.host_fences(), manager.wait_timeout_s)
    manager.accounting.waited(time.perf_counter_ns() - begin, name)
    if late is not None:
        raise SlotInUseError(
            f"{what} is still read on stream {late.stream} after wait_timeout_s={manager.wait_timeout_s}; "
            "nothing was published"
        )


def order_behind(block: Block, backend: Backend) -> None:
    """Let the next copy to a twin come after its readers on other streams; the host does not wait."""
    if not block.mapped:
        for fence in block.fences():
            backend.order(fence)


def rows_of(x: Any, trailing: tuple[int, ...], dtype: torch.dtype) -> Array:
    """`x` as rows of shape `trailing`, converted exactly; raises TypeError, OverflowError or ValueError."""
    rows = exact(x, dtype)
    if rows.size == 0 and rows.ndim == 1 and trailing:
        rows = rows.reshape(0, *trailing)
    if rows.ndim == 0 or rows.shape[1:] != trailing:
        raise ValueError(f"values of shape {rows.shape} for a pool of rows of shape {trailing}")
    return rows


def _forget(accounting: Accounting, slots: deque[Slot], name: str) -> None:
    accounting.forget_slots(len(slots), name)
