"""One launch that applies the staged writes of many tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from staging.defaults import depth_of, manager_for
from staging.exact import Array, exact
from staging.launch import Launcher
from staging.manager import DeviceMemoryManager
from staging.packing import pack
from staging.staged import StagedWriteTensor
from staging.usage import Exclusive, exclusive
from staging.write_log import Writes, lengths_of


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
        tensors: Sequence[StagedWriteTensor],
        output_ptrs: torch.Tensor | None = None,
        output_strides: torch.Tensor | None = None,
    ) -> None:
        """Queue what is staged in `tensors` on the current stream as one launch, and clear it.

        Raises ValueError for a tensor listed twice, of another manager, or for tables that do not match; the
        staged writes are kept whenever it raises.
        """
        self._check_tensors(tensors)
        self._check_table("output_ptrs", output_ptrs, torch.uint64, len(tensors))
        self._check_table("output_strides", output_strides, torch.int64, len(tensors))
        staged = [tensor for tensor in tensors if len(tensor.log)]
        if not staged:
            return
        writes = pack([(tensor.log.runs(), tensor.log.contents) for tensor in staged])
        after = [fence for tensor in staged for fence in tensor.unordered_before()]
        fence = self._launcher.launch(writes, [tensor.flat for tensor in staged], after)
        for tensor in staged:
            tensor.last_apply = fence
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
        ids = exact(tensor_ids, torch.int64).reshape(-1)
        if ids.size == 0:
            raise ValueError("tensor_ids are empty: a batch stages at least one write")
        if ids.min() < 0 or ids.max() >= len(tensors):
            raise IndexError(f"tensor_ids hold {ids.min()} to {ids.max()}; there are {len(tensors)} tensors")
        rows, starts = (np.broadcast_to(exact(x, torch.int64), ids.shape) for x in (rows, starts))
        flat = _flat(values)
        lengths = lengths_of(lengths, flat, len(ids))
        flat = flat.reshape(-1)
        ends = np.cumsum(lengths)
        noted: list[tuple[StagedWriteTensor, Writes]] = []
        for index in np.unique(ids).tolist():
            mine = ids == index
            picked = np.concatenate([flat[e - n : e] for e, n in zip(ends[mine], lengths[mine], strict=True)])
            log = tensors[index].log
            noted.append((tensors[index], log.check_many(rows[mine], starts[mine], picked, lengths[mine])))
        for tensor, writes in noted:
            tensor.log.note(writes)

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


def _flat(values: Any) -> Array:
    """The values before anyone's dtype is known: arrays and tensors as they are, sequences by numpy."""
    if isinstance(values, torch.Tensor):
        return exact(values, values.dtype) if values.dtype != torch.bfloat16 else values.float().numpy()
    if isinstance(values, np.ndarray):
        return values
    return np.asarray(values if hasattr(values, "__len__") else list(values))
