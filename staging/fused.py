"""One launch that applies the staged writes of many tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from staging.defaults import depth_of, manager_for
from staging.dtypes import whole
from staging.exact import Array, exact
from staging.launch import Launcher, PackedBatch
from staging.manager import DeviceMemoryManager
from staging.staged import StagedWriteTensor
from staging.targets import Targets
from staging.usage import Exclusive, all_exclusive, exclusive
from staging.write_log import indices, lengths_of


class FusedStagedWriter(Exclusive):
    """Applies many StagedWriteTensors, of any dtypes, with one slot and one launch.

    `max_writes` is a hint; more are taken. Pointers and strides passed to `apply` for upstream's sake are
    checked for their form and not read: the writer knows its tensors. One call at a time, any thread.
    """

    def __init__(
        self,
        device: torch.device | str | None = None,
        max_writes: int = 0,
        max_concurrency: int | None = None,
        *,
        name: str | None = None,
        manager: DeviceMemoryManager | None = None,
    ) -> None:
        if whole(max_writes, "max_writes") < 0:
            raise ValueError(f"max_writes={max_writes}: give a count >= 0")
        self.manager = manager_for(device, manager)
        self.device = self.manager.device
        self.max_writes = max_writes
        self.max_concurrency = depth_of(max_concurrency, self.manager)
        self.name = type(self).__name__ if name is None else name
        self._launcher = Launcher(self.manager, self.max_concurrency, self.name)
        self._known: Targets | None = None

    @exclusive
    def apply(
        self,
        tensors: Iterable[StagedWriteTensor],
        output_ptrs: torch.Tensor | None = None,
        output_strides: torch.Tensor | None = None,
    ) -> None:
        """Queue what is staged in `tensors` on the current stream as one launch, and clear it.

        Raises ValueError for a tensor listed twice, of another manager, or for tables that do not match; the
        staged writes are kept whenever it raises.
        """
        tensors = list(tensors)
        known = self._learn(tensors)
        self._check_table("output_ptrs", output_ptrs, torch.uint64, len(tensors))
        self._check_table("output_strides", output_strides, torch.int64, len(tensors))
        self._apply(tensors, known)

    def _apply(self, tensors: Sequence[StagedWriteTensor], known: Targets) -> None:
        logs = known.logs
        batch = logs[0].batch if logs else None
        if (
            isinstance(batch, PackedBatch)
            and batch.logs == logs
            and True not in [tensor._in_call for tensor in tensors]
        ):
            self._launcher.launch_batch(batch, [tensor.block for tensor in tensors])
            return
        staged = [tensor for tensor in tensors if tensor.log]
        if not staged:
            return
        with all_exclusive(staged):
            flat = known.flat if len(staged) == len(tensors) else Targets(staged).flat
            self._launcher.launch([tensor.log for tensor in staged], [tensor.block for tensor in staged], flat)
            for tensor in staged:
                tensor.log.clear()

    @exclusive
    def stage(
        self,
        tensors: Sequence[StagedWriteTensor],
        tensor_ids: Any,
        rows: Any,
        starts: Any,
        values: Any,
        lengths: Any = None,
    ) -> None:
        """Note many writes for many tensors: write i goes to `tensors[tensor_ids[i]]`; else as `stage_writes`.

        All or nothing over all of the tensors. Quickest for one element a write, no place twice, in arrays (ids,
        rows and starts int64 or int32, values of the dtype of all tensors).
        """
        known = self._learn(tensors)
        writes = None if lengths is not None else known.pack(self._launcher, tensor_ids, rows, starts, values)
        if writes is None:
            self._stage(tensors, tensor_ids, rows, starts, values, lengths)
        else:
            PackedBatch(self._launcher, writes, known.logs, known.addresses)

    @exclusive
    def apply_writes(
        self,
        tensors: Sequence[StagedWriteTensor],
        tensor_ids: Any,
        rows: Any,
        starts: Any,
        values: Any,
        lengths: Any = None,
    ) -> None:
        """`stage` and `apply` of the same tensors in one call, at less cost; behind what they have staged already."""
        known = self._learn(tensors)
        writes = None if lengths is not None else known.pack(self._launcher, tensor_ids, rows, starts, values)
        if writes is None:
            self._stage(tensors, tensor_ids, rows, starts, values, lengths)
            self._apply(tensors, known)
            return
        try:
            self._launcher.launch_elements(writes, [tensor.block for tensor in tensors])
        except BaseException:
            PackedBatch(self._launcher, writes, known.logs, known.addresses)
            raise

    def _stage(
        self, tensors: Sequence[StagedWriteTensor], tensor_ids: Any, rows: Any, starts: Any, values: Any, lengths: Any
    ) -> None:
        ids = indices(tensor_ids, "tensor_ids")
        if ids.min() < 0 or ids.max() >= len(tensors):
            raise IndexError(f"tensor_ids hold {ids.min()} to {ids.max()}; there are {len(tensors)} tensors")
        rows, starts = _one_each(rows, "rows", len(ids)), _one_each(starts, "starts", len(ids))
        if isinstance(values, Iterable) and not hasattr(values, "__getitem__"):
            values = list(values)
        shape = np.shape(values) if not isinstance(values, torch.Tensor) else tuple(values.shape)
        lengths = lengths_of(lengths, shape, len(ids))
        with all_exclusive(tensors):
            noted = []
            for index in np.unique(ids).tolist():
                mine, log = ids == index, tensors[index].log
                places = log.check_many(rows[mine], starts[mine], lengths[mine])
                noted.append((log, places, exact(_picked(values, mine, lengths), log.dtype).reshape(-1)))
            for log, places, array in noted:
                log.note(places, array)

    def _learn(self, tensors: Sequence[StagedWriteTensor]) -> Targets:
        """What `stage` and `apply` need to know of tensors, worked out again whenever they are others."""
        self.manager.check()
        known = self._known
        try:
            if known is not None and known.logs == [tensor.log for tensor in tensors]:
                return known
        except AttributeError:
            pass  # no tensors: said below
        self._check_tensors(tensors)
        self._known = known = Targets(tensors)
        return known

    def _check_tensors(self, tensors: Sequence[StagedWriteTensor]) -> None:
        if len({id(tensor) for tensor in tensors}) != len(tensors):
            raise ValueError("a tensor is listed twice; list each one once")
        for position, tensor in enumerate(tensors):
            if not isinstance(tensor, StagedWriteTensor):
                raise TypeError(f"tensors[{position}] is a {type(tensor).__name__}, not a StagedWriteTensor")
            if tensor.manager is not self.manager:
                raise ValueError(f"tensors[{position}] belongs to another manager than this writer")

    def _check_table(self, name: str, table: torch.Tensor | None, dtype: torch.dtype, count: int) -> None:
        if table is None:
            return
        if not isinstance(table, torch.Tensor):
            raise TypeError(f"{name} is a {type(table).__name__}; give a tensor on {self.device}, or None")
        if table.numel() != count or table.dtype != dtype or table.device != self.device:
            raise ValueError(
                f"{name} holds {table.numel()} entries of {table.dtype} on {table.device}; "
                f"{count} of {dtype} on {self.device} are needed, or None"
            )


def _one_each(values: Any, what: str, num_writes: int) -> Array:
    """int64[num_writes] from one entry per write, or one for all."""
    array = indices(values, what)
    if len(array) not in (1, num_writes):
        raise ValueError(f"{len(array)} {what} for {num_writes} writes: give one per write, or one for all")
    return np.broadcast_to(array, (num_writes,))


def _picked(values: Any, mine: Array, lengths: Array) -> Any:
    """The values of the writes that `mine` marks, as the caller gave them, so that they are converted only once."""
    one_each = len(values) == len(mine) and lengths.min() == lengths.max()  # one value or row of values per write
    where = np.flatnonzero(mine if one_each else np.repeat(mine, lengths))
    if isinstance(values, torch.Tensor):
        return values[torch.from_numpy(where)]
    if isinstance(values, np.ndarray):
        return values[where]
    return [values[index] for index in where.tolist()]
