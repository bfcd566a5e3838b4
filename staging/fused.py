"""One launch that applies the staged writes of many tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from staging.defaults import depth_of, manager_for
from staging.dtypes import carrier, whole
from staging.elements import ElementWrites, keys_of
from staging.exact import Array, exact
from staging.launch import Launcher, PackedBatch
from staging.manager import DeviceMemoryManager
from staging.slots import Slot
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
        self._known: _Known | None = None

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

    def _apply(self, tensors: Sequence[StagedWriteTensor], known: _Known) -> None:
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

        All or nothing over all of the tensors. Quickest for one element a write, no place twice, in arrays (ids,
        rows and starts int64, values of the dtype of all tensors, which are 2-D).
        """
        known = self._learn(tensors)
        packed = None if lengths is not None else self._pack(known, tensor_ids, rows, starts, values)
        if packed is None:
            self._stage(tensors, tensor_ids, rows, starts, values, lengths)
        else:
            PackedBatch(self._launcher, *packed, known.logs, known.addresses)

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
        packed = None if lengths is not None else self._pack(known, tensor_ids, rows, starts, values)
        if packed is None:
            self._stage(tensors, tensor_ids, rows, starts, values, lengths)
            self._apply(tensors, known)
            return
        try:
            self._launcher.launch_elements(*packed, [tensor.block for tensor in tensors])
        except BaseException:
            PackedBatch(self._launcher, *packed, known.logs, known.addresses)
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

    def _pack(self, known: _Known, ids: Any, rows: Any, starts: Any, values: Any) -> tuple[Slot, ElementWrites] | None:
        """Elements put straight into a slot, where tensors and arrays are such that this takes no work for each one on
        the host; None, having staged nothing, for all that is not so or is wrong."""
        span, width, kind, logs = known.num_rows, known.num_columns, known.kind, known.logs
        if kind is None or values.__class__ is not np.ndarray or values.dtype is not kind:
            return None
        if getattr(ids, "shape", None) != values.shape:
            return None
        for log in logs:
            if not log.idle or log.elements or log.offsets:
                return None
        shift = 0
        if type(starts) is int:
            if not 0 <= starts < width:
                return None
            keys, shift, width = keys_of((ids, rows), (len(logs), span)), starts * kind.itemsize, 1
        else:
            keys = keys_of((ids, rows, starts), (len(logs), span, width))
        if keys is None:
            return None
        slot, writes = self._launcher.room(len(keys), len(logs), span, width, kind.itemsize)
        writes.write_header()
        table = writes.table
        table[:] = known.table
        if shift:
            table[::2] += shift
        writes.keys[:] = keys
        writes.values(kind)[:] = values
        return slot, writes

    def _learn(self, tensors: Sequence[StagedWriteTensor]) -> _Known:
        """What `stage` and `apply` need to know of tensors, worked out again whenever they are others."""
        self.manager.check()
        known = self._known
        try:
            if known is not None and known.logs == [tensor.log for tensor in tensors]:
                return known
        except AttributeError:
            pass  # no tensors: said below
        self._check_tensors(tensors)
        self._known = known = _Known(tensors)
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


class _Known:
    """Facts of the tensors seen last. They are known by their logs: tensors and memory are not kept alive."""

    def __init__(self, tensors: Sequence[StagedWriteTensor]) -> None:
        self.logs = [tensor.log for tensor in tensors]
        self.addresses = [tensor.block.address for tensor in tensors]
        self.num_rows = min((tensor.num_rows for tensor in tensors), default=0)
        self.num_columns = min((tensor.shape[-1] for tensor in tensors), default=0)
        kinds = {carrier(tensor.dtype) for tensor in tensors}
        plain = len(kinds) == 1 and all(len(tensor.shape) == 2 and tensor.dtype != torch.bfloat16 for tensor in tensors)
        self.kind = kinds.pop() if plain else None
        """The carrier of all tensors, where they are 2-D and of one; then batches of elements may be packed at once."""
        pitches = [tensor.shape[-1] * tensor.log.itemsize for tensor in tensors]
        self.table = np.array(list(zip(self.addresses, pitches, strict=True)), np.int64).reshape(-1)


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
