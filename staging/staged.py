"""A device tensor that the host changes by staged writes, applied together by one launch."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, cast

import torch

from staging.defaults import depth_of, manager_for
from staging.dtypes import nbytes_of, shape_of
from staging.launch import Launcher
from staging.manager import DeviceMemoryManager
from staging.usage import Exclusive, exclusive
from staging.write_log import WriteLog


class StagedWriteTensor(Exclusive):
    """A zeroed device tensor of shape (n,) or (rows, columns) that never moves, and a log of staged writes.

    `.device_tensor` (alias `.gpu`) is the device's; it is defined on the current stream from `apply_write` on,
    other streams wait as in torch, and kernels of the engine may write it too. `uva_instead_of_gpu` keeps a
    large, rarely read tensor in mapped host memory. Within an apply the last staged write of an element wins.
    A call that raises stages nothing. One call at a time, any thread.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        dtype: torch.dtype,
        device: torch.device | str | None = None,
        max_concurrency: int | None = None,
        uva_instead_of_gpu: bool = False,
        *,
        manager: DeviceMemoryManager | None = None,
    ) -> None:
        self.manager = manager_for(device, manager)
        self.manager.check()
        self.shape = shape_of(size, rank_max=2)
        self.num_rows = self.shape[0]
        self.dtype = dtype
        self.device = self.manager.device
        self.max_concurrency = depth_of(max_concurrency, self.manager)
        self.block = self.manager.allocate_target(nbytes_of(self.shape, dtype), resident=not uva_instead_of_gpu)
        self.manager.drop_with(self, self.block)
        self.device_tensor = self.block.device.view(dtype).view(self.shape)
        self._launcher = Launcher(self.manager, self.max_concurrency)
        self.log = WriteLog(self.shape, dtype, stash=self._launcher.stash)
        me = weakref.ref(self)  # no cycle: a dropped tensor goes at once

        def slow(*write: Any) -> None:
            StagedWriteTensor.stage_write(cast("StagedWriteTensor", me()), *write)

        stage, self._hold = self.log.short_way(self.manager.gate, slow)
        if type(self).stage_write is StagedWriteTensor.stage_write:
            self.stage_write = stage  # type: ignore[method-assign, assignment]

    @property
    def _busy(self) -> bool:
        return self._hold()

    @_busy.setter
    def _busy(self, held: bool) -> None:
        self._hold(held)

    @property
    def gpu(self) -> torch.Tensor:
        """Alias of `device_tensor`."""
        return self.device_tensor

    @exclusive
    def stage_write(self, index: Any, start: Any, x: Any) -> None:
        """Note `x` (any flat sequence, array, CPU tensor or iterable) for row `index` from column `start` on;
        in a 1-D tensor, from element `index + start` on. Empty `x` is ignored.

        Raises IndexError (with the value and the limit), TypeError, OverflowError or ValueError, staging nothing.
        """
        self.manager.check()
        self.log.stage(index, start, x)

    @exclusive
    def stage_write_elem(self, index: Any, x: Any) -> None:
        """Note one value: column 0 of row `index`, or element `index` of a 1-D tensor."""
        self.manager.check()
        self.log.stage_element(index, x)

    @exclusive
    def stage_writes(self, rows: Any, starts: Any, values: Any, lengths: Any = None) -> None:
        """Note many writes at once, in order: `rows[i]`, from `starts[i]` on, `lengths[i]` of the flat `values`.

        `starts` may be one number for all. Without `lengths`, `values` holds one value or one row of values per
        write. All or nothing: the first bad write is named and none is staged. An empty batch raises ValueError.
        """
        self.manager.check()
        self.log.stage_many(rows, starts, values, lengths)

    @exclusive
    def apply_write(self) -> None:
        """Queue all staged writes on the current stream as one launch, and clear them; nothing staged, nothing
        done. If it raises, the log is kept and the next apply does all of it."""
        self.manager.check()
        if not len(self.log):
            return
        self._launcher.launch([self.log], [self.block])
        self.log.clear()

    @exclusive
    def clear_staged_writes(self) -> None:
        """Drop what was staged and not applied."""
        self.manager.check()
        self._launcher.drop([slot for _, slot in self.log.stashed])
        self.log.clear()
