"""One block of host memory and how the device sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from staging.defaults import manager_for
from staging.dtypes import carrier, nbytes_of, shape_of, whole
from staging.manager import DeviceMemoryManager
from staging.usage import Exclusive, exclusive


class UvaBuffer(Exclusive):
    """Zeroed host memory that the device reads in place, or by an explicit copy where it cannot.

    `.cpu` is the host tensor of shape `size`, `.np` its numpy face (bfloat16 as uint16 bits), `uva()` the
    device's. What is written through `.cpu` or `.np` is defined on the device from the next `uva()` on, for
    readers queued after it on the current stream; nothing protects earlier readers from the write: they must
    be done. One call at a time; any thread. When dropped, its memory is freed once queued readers are done.
    `name` is what its memory is counted under in `manager.stats()`, by default the class's.
    Raises BackendUnavailableError where no backend serves the device, MemoryLimitError over the budget.
    """

    _mapped = True

    def __init__(
        self,
        size: int | Sequence[int],
        dtype: torch.dtype,
        *,
        name: str | None = None,
        manager: DeviceMemoryManager | None = None,
    ) -> None:
        self.manager = manager_for(None, manager)
        self.name = type(self).__name__ if name is None else name
        self.shape = shape_of(size)
        self.dtype = dtype
        self.device = self.manager.device
        self.row_nbytes = nbytes_of(self.shape[1:], dtype)
        self.block = self.manager.allocate(nbytes_of(self.shape, dtype), mapped=self._mapped, name=self.name)
        self._finalizer = self.manager.drop_with(self, self.block)
        self.cpu = self.block.host.view(dtype).view(self.shape)
        self.np: np.ndarray[Any, np.dtype[Any]] = self.block.host.numpy().view(carrier(dtype)).reshape(self.shape)
        self._device_tensor = self.block.device.view(dtype).view(self.shape)
        self._last, self._num_last = self._device_tensor, self.shape[0]

    @exclusive
    def uva(self, n: int | None = None) -> torch.Tensor:
        """The device tensor of the first `n` rows (default: all), holding what the host wrote up to now.

        Where the backend copies, the copy is queued on the current stream and the host memory is kept until
        it is done. Raises ValueError for n outside 0 to the number of rows, StagingError while capturing a graph.
        """
        rows = self.rows(n)
        self.manager.check()
        self.manager.backend.refuse_capture()
        return self.publish(0, rows)

    def publish(self, start: int, stop: int) -> torch.Tensor:
        """Make rows [start, stop) visible to the device; returns the device tensor of the first `stop` rows."""
        self.manager.backend.publish(self.block, start * self.row_nbytes, stop * self.row_nbytes)
        if stop != self._num_last:  # the same count comes again and again, and slicing a tensor takes its time
            self._last, self._num_last = self._device_tensor[:stop], stop
        return self._last

    def drop(self) -> None:
        """Retire the memory now, as if nobody held the buffer any more; no publish may follow. Again is fine."""
        self._finalizer()

    def rows(self, n: int | None) -> int:
        """`n` as a count of rows of this buffer; raises ValueError outside 0 to their number."""
        num_rows = self.shape[0] if n is None else whole(n, "n")
        if not 0 <= num_rows <= self.shape[0]:
            raise ValueError(f"n={n}: the buffer has {self.shape[0]} rows")
        return num_rows


class NonUvaBuffer(UvaBuffer):
    """The same face with a device twin of its own: `uva()` always copies, on the current stream.

    The host source is pinned where possible and kept alive until the copy is done; a write to `.np` after
    `uva()` may reach a copy that is still queued, so wait for it, or publish through a pool.
    """

    _mapped = False
