"""One launch that applies the staged writes of many tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from staging.defaults import depth_of, manager_for
from staging.exact import Array, exact
from staging.launch import Launcher
from staging.manager import DeviceMemoryManager
from staging.staged import StagedWriteTensor
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
        manager: DeviceMemoryManager | None = None,
    ) -> None:
        if max_writes < 0:
            raise ValueError(f"max_writes={max_writes}: give a count >= 0")
        self.manager = manager_for(device, manager)
        self.device = self.manager.device
        self.max_writes = max_writes
        self.max_concurrency = depth_of(max_concurrency, self.manager)
        self._launcher = Launcher(self.manager, self.max_concurrency)

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
        self._check_tensors(tensors)
        self._check_table("output_ptrs", output_ptrs, torch.uint64, len(tensors))
        self._check_table("output_strides", output_strides, torch.int64, len(tensors))
        staged = [tensor for tensor in tensors if len(tensor.log)]
        if not staged:
            return
        with all_exclusive(staged):
            self._launcher.launch([tensor.log for tensor in staged], [tensor.block for tensor in staged])
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

        All or nothing over all of the tensors.
        """
        self._check_tensors(tensors)
        ids = indices(tensor_ids, "tensor_ids")
        if ids.min() < 0 or ids.max() >= len(tensors):
            raise IndexError(f"tensor_ids hold {ids.min()} to {ids.max()}; there are {len(tensors)} tensors")
        rows, starts = (np.broadcast_to(exact(x, torch.int64), ids.shape) for x in (rows, starts))
        if lengths is None and self._stage_elements(tensors, ids, rows, starts, values):
            return
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

    def _stage_elements(
        self, tensors: Sequence[StagedWriteTensor], ids: Array, rows: Array, starts: Array, values: Any
    ) -> bool:
        """The short way for an array with one element for each write, in the order of the tensors, which are of one
        dtype and 2-D; False, having staged nothing, for all else and for whatever is wrong."""
        if len({tensor.dtype for tensor in tensors}) > 1 or any(len(tensor.shape) != 2 for tensor in tensors):
            return False
        if not isinstance(values, np.ndarray) or values.shape != ids.shape or (ids[1:] < ids[:-1]).any():
            return False
        heights, widths = np.array([tensor.shape for tensor in tensors], np.uint64).T
        width = widths[ids]
        inside = (rows.view(np.uint64) < heights[ids]) & (starts.view(np.uint64) < width)  # negative ones are huge
        if not inside.all():
            return False
        converted = exact(values, tensors[0].dtype)
        offsets = rows * width.view(np.int64) + starts
        cuts = np.searchsorted(ids, np.arange(len(tensors) + 1)).tolist()
        with all_exclusive(tensors):
            for tensor, low, high in zip(tensors, cuts, cuts[1:], strict=False):
                tensor.log.note((offsets[low:high], None), converted[low:high])
        return True

    def _check_tensors(self, tensors: Sequence[StagedWriteTensor]) -> None:
        self.manager.check()
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
        if table.numel() != count or table.dtype != dtype or table.device != self.device:
            raise ValueError(
                f"{name} holds {table.numel()} entries of {table.dtype} on {table.device}; "
                f"{count} of {dtype} on {self.device} are needed, or None"
            )


def _picked(values: Any, mine: Array, lengths: Array) -> Any:
    """The values of the writes that `mine` marks, as the caller gave them, so that they are converted only once."""
    one_each = len(values) == len(mine)  # one value, or one row of values, for each write
    where = np.flatnonzero(mine if one_each else np.repeat(mine, lengths))
    if isinstance(values, torch.Tensor):
        return values[torch.from_numpy(where)]
    if isinstance(values, np.ndarray):
        return values[where]
    return [values[index] for index in where.tolist()]
