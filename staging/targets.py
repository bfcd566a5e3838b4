"""Tensors as the targets of batches of elements, which go straight into a slot at no work for each one on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from staging.backend import Block
from staging.dtypes import carrier
from staging.elements import Layout
from staging.keys import keys_of
from staging.launch import Launcher, SlotWrites, flat_layout
from staging.write_log import WriteLog


class Target(Protocol):
    """A tensor of staged writes, as `Targets` sees it."""

    log: WriteLog
    block: Block
    dtype: torch.dtype
    shape: tuple[int, ...]


class Targets:
    """Facts of tensors, worked out once. They are known by their logs: tensors and memory are not kept alive."""

    def __init__(self, tensors: Sequence[Target]) -> None:
        self.logs = [tensor.log for tensor in tensors]
        self.addresses = [tensor.block.address for tensor in tensors]
        columns = [1 if len(tensor.shape) == 1 else tensor.shape[1] for tensor in tensors]
        self._pitches = [count * log.itemsize for count, log in zip(columns, self.logs, strict=True)]
        self._width = min(columns, default=0)
        self._rows = (min((tensor.shape[0] for tensor in tensors), default=0),)
        self._ids_and_rows = (len(tensors), *self._rows)
        dtypes = {tensor.dtype for tensor in tensors}
        self._kind = carrier(dtypes.pop()) if len(dtypes) == 1 and torch.bfloat16 not in dtypes else None
        self._layout = self._laid_out(0, self._width)
        self._column, self._column_layout = 0, self._laid_out(0, 1)
        self.flat = flat_layout(self.logs, self.addresses)

    def pack(self, launcher: Launcher, ids: Any, rows: Any, starts: Any, values: Any) -> SlotWrites | None:
        """Elements in a slot, to be launched or dropped; `ids` of None are all the first tensor. None, having staged
        nothing, where they are not such arrays, are wrong, or something is staged or in progress already."""
        if values.__class__ is not np.ndarray or values.dtype is not self._kind:
            return None
        for log in self.logs:
            if not log.idle or log.elements or log.offsets:
                return None
        places, shape = ((rows,), self._rows) if ids is None else ((ids, rows), self._ids_and_rows)
        if type(starts) is int:
            if not 0 <= starts < self._width:
                return None
            keys = keys_of(places, shape, values.shape)
            layout = self._column_layout if starts == self._column else self._of_column(starts)
        else:
            keys, layout = keys_of((*places, starts), (*shape, self._width), values.shape), self._layout
        return None if keys is None else launcher.pack(layout, keys, values)

    def _of_column(self, column: int) -> Layout:
        """The layout of elements that all lie in one column; the last one is kept."""
        layout = self._laid_out(column, 1)
        self._column, self._column_layout = column, layout
        return layout

    def _laid_out(self, column: int, width: int) -> Layout:
        itemsize = self.logs[0].itemsize if self.logs else 1
        table: list[int] = []
        for address, pitch in zip(self.addresses, self._pitches, strict=True):
            table += (address + column * itemsize, pitch)
        return Layout(table, span=self._rows[0], width=width, itemsize=itemsize)
