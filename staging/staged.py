"""A device tensor that the host changes by staged writes, applied together by one launch."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from staging.defaults import depth_of, manager_for
from staging.dtypes import nbytes_of, shape_of
from staging.exact import exact
from staging.launch import Launcher, PackedBatch, SlotWrites
from staging.manager import DeviceMemoryManager
from staging.short_way import short_ways
from staging.targets import Targets
from staging.usage import Exclusive, exclusive
from staging.write_log import WriteLog, indices


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
        name: str | None = None,
        manager: DeviceMemoryManager | None = None,
    ) -> None:
        self.manager = manager_for(device, manager)
        self.manager.check()
        self.name = type(self).__name__ if name is None else name
        self.shape = shape_of(size, rank_max=2)
        self.num_rows = self.shape[0]
        self.dtype = dtype
        self.device = self.manager.device
        self.max_concurrency = depth_of(max_concurrency, self.manager)
        nbytes = nbytes_of(self.shape, dtype)
        self.block = self.manager.allocate_target(nbytes, resident=not uva_instead_of_gpu, name=self.name)
        self.manager.drop_with(self, self.block)
        self.device_tensor = self.block.device.view(dtype).view(self.shape)
        self._launcher = Launcher(self.manager, self.max_concurrency, self.name)
        self.log = WriteLog(self.shape, dtype, stash=self._launcher.stash)
        self._in_call = False
        self._targets = Targets([self])
        if type(self).stage_write is StagedWriteTensor.stage_write:
            me = weakref.ref(self)  # no cycle: a dropped tensor goes at once
            self.stage_write, self.stage_write_elem = short_ways(  # type: ignore[method-assign, assignment]
                self.log,
                self.manager.gate,
                lambda *write: StagedWriteTensor.stage_write(_alive(me), *write),
                lambda *write: StagedWriteTensor.stage_write_elem(_alive(me), *write),
            )

    @property
    def _busy(self) -> bool:
        return self._in_call

    @_busy.setter
    def _busy(self, held: bool) -> None:
        self._in_call = held
        self.log.hold(held)

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

    def stage_writes(self, rows: Any, starts: Any, values: Any, lengths: Any = None) -> None:
        """Note many writes at once, in order: `rows[i]`, from `starts[i]` on, `lengths[i]` of the flat `values`.

        `starts` may be one number for all. Without `lengths`, `values` holds one value or one row of values per
        write. All or nothing: the first bad write is named and none is staged. An empty batch raises ValueError.
        Quickest for one element a write, no place twice, in arrays (rows and starts int64, or int32, values of the
        dtype).
        """
        writes = None if lengths is not None else self._pack(rows, starts, values)
        if writes is None:
            self._stage_writes(rows, starts, values, lengths)
        else:
            PackedBatch(self._launcher, writes, self._targets.logs, self._targets.addresses)

    def apply_writes(self, rows: Any, starts: Any, values: Any, lengths: Any = None) -> None:
        """`stage_writes` and `apply_write` in one call, at less cost; behind what is staged already."""
        writes = None if lengths is not None else self._pack(rows, starts, values)
        if writes is None:
            self._stage_writes(rows, starts, values, lengths)
            self.apply_write()
            return
        try:
            self._launcher.launch_elements(writes, (self.block,))
        except BaseException as error:
            PackedBatch(self._launcher, writes, self._targets.logs, self._targets.addresses)
            self.manager.raise_if_lost(error)
            raise

    @exclusive
    def _stage_writes(self, rows: Any, starts: Any, values: Any, lengths: Any) -> None:
        self.manager.check()
        self.log.stage_many(indices(rows, "rows"), starts, exact(values, self.dtype), lengths)

    def _pack(self, rows: Any, starts: Any, values: Any) -> SlotWrites | None:
        """Elements in a slot, or None: see `Targets.pack`."""
        try:
            return self._targets.pack(self._launcher, None, rows, starts, values)
        except RuntimeError as error:
            self.manager.raise_if_lost(error)
            raise

    def apply_write(self) -> None:
        """Queue all staged writes on the current stream as one launch, and clear them; nothing staged, nothing
        done. If it raises, the log is kept and the next apply does all of it."""
        log = self.log
        batch = log.batch
        if self._in_call or log.offsets or not (log.elements if batch is None else isinstance(batch, PackedBatch)):
            self._apply_write()
            return
        self._in_call = True
        log.idle.clear()
        try:
            self._launcher.launch([log], (self.block,), self._targets.flat)
            log.elements.clear()
        except RuntimeError as error:
            self.manager.raise_if_lost(error)
            raise
        finally:
            self._in_call = False
            log.hold(False)

    @exclusive
    def _apply_write(self) -> None:
        self.manager.check()
        if self.log:
            self._launcher.launch([self.log], [self.block], self._targets.flat)
            self.log.clear()

    @exclusive
    def clear_staged_writes(self) -> None:
        """Drop what was staged and not applied."""
        self.manager.check()
        if self.log.batch is not None:
            self.log.batch.spill()  # it may hold writes of other tensors
        self._launcher.drop([slot for _, slot in self.log.stashed])
        self.log.clear()


def _alive(tensor: weakref.ref[StagedWriteTensor]) -> StagedWriteTensor:
    alive = tensor()
    if alive is None:
        raise ReferenceError("the tensor that this stage_write belongs to was dropped; keep the tensor while you stage")
    return alive
