"""A pool of buffers used round robin, each handed out under a lease that protects its readers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from staging.defaults import depth_of, manager_for
from staging.dtypes import check_out, shape_of
from staging.errors import StagingError
from staging.exact import Array
from staging.fence import StepEnd
from staging.graph import HeldSlot
from staging.manager import DeviceMemoryManager
from staging.policies import Guard
from staging.slots import Slot, SlotRing, rows_of
from staging.usage import Exclusive, exclusive


class Lease:
    """What one publish handed out: `tensor` on the device, valid for readers launched before the lease ends.

    Outside step mode that is the pool's next publish; in step mode, the end of the step in which the pool
    publishes next. `slot` is the slot's number, `step` the step of the publish.
    """

    __slots__ = ("_manager", "_slot", "_use", "slot", "step", "tensor")

    def __init__(self, slot: Slot, tensor: torch.Tensor, manager: DeviceMemoryManager) -> None:
        self.tensor = tensor
        self.slot = slot.index
        self.step = slot.step
        self._slot, self._use, self._manager = slot, slot.num_uses, manager

    def retire(self, stream: Any) -> None:
        """Tell that readers of this lease were launched on `stream` up to here; adds to the other fences.

        Raises ValueError once the slot was handed out again: such readers came too late to be protected.
        """
        self._manager.check()
        if self._slot.num_uses != self._use:
            raise ValueError(f"the lease of slot {self.slot} from step {self.step} is over: the slot was reused")
        with self._manager.device_work():
            self._manager.backend.refuse_capture(stream)
            self._slot.buffer.block.used(self._manager.backend.fence(stream))


class UvaBufferPool(Exclusive):
    """`max_concurrency` buffers of shape `size` used in turn; a slot is reused only when its readers are done.

    `guard` (default: the manager's) says what happens when they are not: "wait", "raise", "grow" or "trust".
    Contents that need more rows grow that slot alone; the old memory outlives its readers. Values are
    converted exactly (see staging.exact) and never aliased. One call at a time, any thread; readers on other
    streams than the current one are told by `Lease.retire` or the manager. `name` is what errors and
    `manager.stats()` call it, by default the class's name.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        dtype: torch.dtype,
        max_concurrency: int | None = None,
        *,
        guard: Guard | None = None,
        name: str | None = None,
        manager: DeviceMemoryManager | None = None,
    ) -> None:
        self.manager = manager_for(None, manager)
        self.max_concurrency = depth_of(max_concurrency, self.manager)
        self.name = type(self).__name__ if name is None else name
        self.owner: str | None = None  # the tensor that publishes through it, if it is not the user's own
        self.size = size
        self.dtype = dtype
        self.device = self.manager.device
        self._ring = SlotRing(shape_of(size), dtype, self.max_concurrency, self.manager, guard, name=self.name)
        self._trailing = self._ring.shape[1:]
        self._current: Slot | None = None

    @property
    def num_slots(self) -> int:
        """Slots there are now."""
        return len(self._ring)

    @exclusive
    def copy_to_uva(self, x: Any) -> torch.Tensor:
        """Copy `x` (rows of the pool's trailing shape) into the next slot; its first len(x) rows on the device.

        Raises TypeError, OverflowError or ValueError for values that do not fit (nothing is rotated),
        SlotInUseError by the guard, MemoryLimitError when growth passes the budget.
        """
        return self._publish(rows_of(x, self._trailing, self.dtype))[1]

    @exclusive
    def lease(self, x: Any) -> Lease:
        """As `copy_to_uva`, returning the lease, on which readers of other streams can be retired."""
        slot, tensor = self._publish(rows_of(x, self._trailing, self.dtype))
        return Lease(slot, tensor, self.manager)

    @exclusive
    def copy_to_gpu(self, x: Any, out: torch.Tensor | None = None) -> torch.Tensor:
        """As `copy_to_uva`, then a copy on the current stream into `out` or a new device tensor, which no later
        publish touches. Raises ValueError where `out` has another shape, dtype or device."""
        rows = rows_of(x, self._trailing, self.dtype)
        if out is not None:
            check_out(out, rows.shape, self.dtype, self.device)
        slot, tensor = self._publish(rows)
        out = torch.empty_like(tensor) if out is None else out
        backend = self.manager.backend
        try:
            backend.copy(tensor, out)
        finally:
            slot.buffer.block.used(backend.fence())
        return out

    @exclusive
    def hold_for_graph(self) -> HeldSlot:
        """Take the slot of the last publish out of rotation, for graphs that read it at its address; a new slot
        of its size takes its place, allocated first. What was published stays there until the handle's `publish`.

        Raises MemoryLimitError, changing nothing; StagingError where nothing was published since the last hold,
        for the pool inside a UvaBackedTensor, and while capturing: hold before the capture begins.
        """
        self.manager.check()
        if self.owner is not None:
            raise StagingError(
                f"this pool is a {self.owner}'s own, whose contents may also move to a slot shared with others; make a "
                "UvaBufferPool, hold a slot of it, and publish the tensor's .np through that"
            )
        slot = self._current
        if slot is None:
            raise StagingError(f"pool {self.name!r} has no current slot to hold: publish through it first")
        self._ring.take_out(slot)
        self._current = None
        return HeldSlot(slot, manager=self.manager, guard=self._ring.guard, name=self.name)

    def _publish(self, rows: Array) -> tuple[Slot, torch.Tensor]:
        num_rows = len(rows)
        slot = self.next_slot(num_rows)
        slot.buffer.np[:num_rows] = rows
        return slot, slot.buffer.publish(0, num_rows)

    def next_slot(self, num_rows: int) -> Slot:
        """The slot to write and publish next, with room for `num_rows`; the lease before ends here."""
        manager = self.manager
        manager.reclaim()
        slot, before = self._ring.acquire(num_rows), self._current
        if before is not None and before is not slot:
            before.end_lease(manager.lease_end(fenced=self._ring.guard != "trust"))
        slot.step = manager.current_step
        self._current = slot
        return slot

    def end_current(self, end: StepEnd) -> None:
        """The last publish's lease ends with `end`, though the pool publishes nothing new."""
        if self._current is not None:
            self._current.end_lease(end)
            self._current = None

    @property
    def current(self) -> Slot | None:
        """The slot of the last publish."""
        return self._current
