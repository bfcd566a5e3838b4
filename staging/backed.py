"""A host array that is the truth, published to the device whenever it changed."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import torch

from staging.defaults import manager_for
from staging.dtypes import carrier, shape_of
from staging.exact import Array
from staging.manager import DeviceMemoryManager, Guard
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
        manager: DeviceMemoryManager | None = None,
    ) -> None:
        if tracking not in ("compare", "caller"):
            raise ValueError(f"tracking={tracking!r}: choose 'compare' or 'caller'")
        self.manager = manager_for(None, manager)
        self.shape, self.dtype, self.tracking = shape_of(size), dtype, tracking
        self.device = self.manager.device
        self.np: Array = np.zeros(self.shape, carrier(dtype))
        self.cpu = torch.from_numpy(self.np)
        if dtype == torch.bfloat16:
            self.cpu = self.cpu.view(torch.bfloat16)
        self.pool = UvaBufferPool(size, dtype, max_concurrency, guard=guard, manager=self.manager)
        self.max_concurrency = self.pool.max_concurrency
        self._held = 0  # leading rows that the current slot holds
        self._mine: tuple[Slot, int] | None = None  # the slot, and which use of it was ours
        self._dirty_from = 0  # the lowest row changed since, by the caller's word
        self.device_tensor = self._publish(self.shape[0])
        self.manager.register(self)

    @property
    def gpu(self) -> torch.Tensor:
        """Alias of `device_tensor`."""
        return self.device_tensor

    @exclusive
    def copy_to_uva(self, n: int | None = None) -> torch.Tensor:
        """Publish all rows or the first `n`, unless the current slot holds them already; returns and rebinds
        `.device_tensor`. Raises ValueError for n outside 0 to the number of rows, else as the pool does."""
        num_rows = self.shape[0] if n is None else operator.index(n)
        if not 0 <= num_rows <= self.shape[0]:
            raise ValueError(f"n={n}: the tensor has {self.shape[0]} rows")
        self.device_tensor = self._publish(num_rows)
        return self.device_tensor

    @exclusive
    def mark_dirty(self, rows: Any = None) -> None:
        """Tell, under tracking="caller", that `rows` changed: an index, a slice, any indices, a mask, or all."""
        if self.tracking != "caller":
            raise ValueError("mark_dirty is for tracking='caller'; tracking='compare' finds changes itself")
        lowest = 0 if rows is None else _lowest(rows, self.shape[0])
        self._dirty_from = min(self._dirty_from, lowest)

    def _publish(self, num_rows: int) -> torch.Tensor:
        slot = self.pool.current
        shared = min(num_rows, self._held)
        if slot is None or (slot, slot.num_uses) != self._mine or not self._unchanged(shared):
            self._held = 0  # until the publish below went through
            slot, tensor = self.pool.fill(num_rows, lambda out: np.copyto(out, self.np[:num_rows]))
            self._held, self._dirty_from, self._mine = num_rows, self.shape[0], (slot, slot.num_uses)
            return tensor
        self.manager.check()
        if num_rows > self._held:  # no reader was given these rows of the slot yet
            slot.buffer.np[self._held : num_rows] = self.np[self._held : num_rows]
            tensor = slot.buffer.publish(self._held, num_rows)
            self._held, self._dirty_from = num_rows, self.shape[0]
            return tensor
        return slot.buffer.publish(num_rows, num_rows)

    def _unchanged(self, num_rows: int) -> bool:
        """Whether the current slot's first rows, as many as it holds of them, still equal the host's."""
        if self.tracking == "caller":
            return self._dirty_from >= num_rows
        slot = self.pool.current
        assert slot is not None
        held, now = slot.buffer.np[:num_rows], self.np[:num_rows]
        return bool(np.array_equal(held.view(np.uint8), now.view(np.uint8)))


def _lowest(rows: Any, num_rows: int) -> int:
    if isinstance(rows, slice):
        picked = np.arange(num_rows)[rows]
    else:
        picked = np.atleast_1d(np.asarray(list(rows) if isinstance(rows, Iterable) else rows))
        if picked.dtype == np.bool_ and len(picked) == num_rows:
            picked = np.flatnonzero(picked)
        if picked.size and (picked.dtype.kind not in "iu" or picked.min() < 0 or picked.max() >= num_rows):
            raise IndexError(f"rows {rows!r}: give indices from 0 to {num_rows - 1}, a slice, a mask, or None for all")
    return int(picked.min()) if picked.size else num_rows
