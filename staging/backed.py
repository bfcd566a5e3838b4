"""A host array that is the truth, published to the device whenever it changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import torch

from staging.defaults import manager_for
from staging.dtypes import carrier, nbytes_of, shape_of, whole
from staging.exact import Array
from staging.group import BackedGroup, Place, group_of
from staging.manager import DeviceMemoryManager
from staging.policies import Guard
from staging.pool import UvaBufferPool
from staging.slots import Slot
from staging.usage import Exclusive, exclusive

Tracking = Literal["compare", "caller"]


class UvaBackedTensor(Exclusive):
    """A zeroed host tensor `.cpu` (numpy face `.np`) and a pool that publishes it.

    `copy_to_uva` hands the host's contents over and rebinds `.device_tensor` (alias `.gpu`); contents that the
    current slot already holds keep it. `tracking="compare"` finds changes however they were made, also through
    `.np`; `"caller"` trusts `mark_dirty` and compares nothing. The constructor publishes once. One call at a
    time, any thread; the lease rules are the pool's.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        dtype: torch.dtype,
        max_concurrency: int | None = None,
        *,
        tracking: Tracking = "compare",
        guard: Guard | None = None,
        name: str | None = None,
        manager: DeviceMemoryManager | None = None,
    ) -> None:
        if tracking not in ("compare", "caller"):
            raise ValueError(f"tracking={tracking!r}: choose 'compare' or 'caller'")
        self.manager = manager_for(None, manager)
        self.shape, self.dtype, self.tracking = shape_of(size), dtype, tracking
        self.device = self.manager.device
        self.name = type(self).__name__ if name is None else name
        self.pool = UvaBufferPool(size, dtype, max_concurrency, guard=guard, name=self.name, manager=self.manager)
        self.pool.owner = type(self).__name__
        self.max_concurrency = self.pool.max_concurrency
        self._group: BackedGroup | None = None
        self._place = Place(0, self.shape, dtype)
        raw = self._host_bytes(guard)
        self.np: Array = raw.view(carrier(dtype)).reshape(self.shape)
        self.cpu = torch.from_numpy(self.np)
        if dtype == torch.bfloat16:
            self.cpu = self.cpu.view(torch.bfloat16)
        self._held = 0  # leading rows that the current slot holds
        self._mine: tuple[Slot, int] | None = None  # the pool's slot, and which use of it was ours
        self._dirty_from = 0  # the lowest row changed since, by the caller's word
        self._epoch = 0 if self._group is None else self._group.epoch  # the last publish of the group that was seen
        self._in_group = False  # whether the current contents lie in the group's slot
        self._own: torch.Tensor | None = None  # what `device_tensor` is, unless it is the group's part
        self._publish(self.shape[0])
        if self._group is None:
            self.manager.published.add_single(self)

    def _host_bytes(self, guard: Guard | None) -> Array:
        """Zeroed memory for the host array: a group's, if one takes the tensor."""
        compares = self.tracking == "compare"
        found = group_of(
            self.manager, self.shape, self.dtype, depth=self.max_concurrency, guard=guard, compares=compares
        )
        if found is None:
            return np.zeros(nbytes_of(self.shape, self.dtype), np.uint8)
        self._group, self._place = found
        return self._group.host[self._place.start : self._place.stop]

    @property
    def device_tensor(self) -> torch.Tensor:
        """What was published last, by this tensor or by the manager."""
        if self._own is not None:
            return self._own
        assert self._group is not None
        return self._group.views[self._place.number]

    @property
    def gpu(self) -> torch.Tensor:
        """Alias of `device_tensor`."""
        return self.device_tensor

    @exclusive
    def copy_to_uva(self, n: int | None = None) -> torch.Tensor:
        """Publish all rows or the first `n`, unless the current slot holds them already; returns and rebinds
        `.device_tensor`. Raises ValueError for n outside 0 to the number of rows, else as the pool does."""
        num_rows = self.shape[0] if n is None else whole(n, "n")
        if not 0 <= num_rows <= self.shape[0]:
            raise ValueError(f"n={n}: the tensor has {self.shape[0]} rows")
        return self._publish(num_rows)

    @exclusive
    def mark_dirty(self, rows: Any = None) -> None:
        """Tell, under tracking="caller", that `rows` changed: an index, a slice, any indices, a mask, or all."""
        if self.tracking != "caller":
            raise ValueError("mark_dirty is for tracking='caller'; tracking='compare' finds changes itself")
        self.manager.check()
        lowest = 0 if rows is None else _lowest(rows, self.shape[0])
        self._follow_group()
        self._dirty_from = min(self._dirty_from, lowest)
        if self._group is not None:
            self._group.is_dirty = True

    def _follow_group(self) -> None:
        """Take note of what the group published since: all rows, in its slot."""
        if self._group is not None and self._epoch != self._group.epoch:
            self._epoch, self._in_group = self._group.epoch, True
            self._held = self._dirty_from = self.shape[0]

    def follow(self) -> None:
        """The group published this tensor, or nothing of it changed: its part of the group's slot is current."""
        self._own = None

    def _publish(self, num_rows: int) -> torch.Tensor:
        self._follow_group()
        if self._unchanged(min(num_rows, self._held)):
            self.manager.check()
            self.manager.backend.refuse_capture()
            self._own = self._kept(num_rows)
            if self._in_group and self._group is not None:
                self._group.set_apart(self)
            return self._own
        slot = self.pool.next_slot(num_rows)
        slot.buffer.np[:num_rows] = self.np[:num_rows]
        self._own = slot.buffer.publish(0, num_rows)
        self._held, self._dirty_from, self._mine = num_rows, self.shape[0], (slot, slot.num_uses)
        self._in_group = False
        if self._group is not None:
            self._group.set_apart(self, self.pool)
        return self._own

    def _kept(self, num_rows: int) -> torch.Tensor:
        """The first rows of the current slot, which holds them or, where nobody was given them yet, gets them now."""
        if self._in_group and self._group is not None:
            self.manager.backend.publish(self._group.block, 0, 0)  # behind the copy, if that was on another stream
            return self._group.views[self._place.number][:num_rows]
        assert self._mine is not None
        slot = self._mine[0]
        if num_rows <= self._held:
            return slot.buffer.publish(num_rows, num_rows)
        slot.buffer.np[self._held : num_rows] = self.np[self._held : num_rows]
        tensor = slot.buffer.publish(self._held, num_rows)
        self._held, self._dirty_from = num_rows, self.shape[0]
        return tensor

    def _unchanged(self, num_rows: int) -> bool:
        """Whether there is a current slot whose first rows, as many as it holds of them, still equal the host's."""
        if self._in_group and self._group is not None:
            held = self._group.part(self._place)
        elif self._mine is not None:
            slot = self._mine[0]
            if self.pool.current is not slot or slot.num_uses != self._mine[1]:
                return False  # somebody published through the pool itself
            held = slot.buffer.np
        else:
            return False
        if self.tracking == "caller":
            return self._dirty_from >= num_rows
        return bool(np.array_equal(held[:num_rows].view(np.uint8), self.np[:num_rows].view(np.uint8)))


def _lowest(rows: Any, num_rows: int) -> int:
    if isinstance(rows, slice):
        picked = np.arange(num_rows)[rows]
    else:
        picked = np.atleast_1d(np.asarray(list(rows) if isinstance(rows, Iterable) else rows))
        if picked.dtype == np.bool_ and picked.shape == (num_rows,):
            picked = np.flatnonzero(picked)
        if picked.size and (picked.dtype.kind not in "iu" or picked.min() < 0 or picked.max() >= num_rows):
            raise IndexError(f"rows {rows!r}: give indices from 0 to {num_rows - 1}, a slice, a mask, or None for all")
    return int(picked.min()) if picked.size else num_rows
