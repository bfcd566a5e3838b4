"""Upstream's names and contract in plain torch, right but without fences: depth alone keeps a slot from its readers.

Made to be derived from. A class reaches its siblings through `names`, so that one which is replaced is used everywhere.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch

from rig.mapping import alias_of

SUMMARY = "upstream's contract in plain torch, without fences: what the incidents are derived from"

Size = int | tuple[int, ...]
_DEPTH = 2  # where none is asked for


def load(*, fault: str | None, device: torch.device) -> Any:
    """The names, for one device."""
    if fault is not None:
        raise ValueError(f"target unfenced has no fault {fault!r}; see target incident")
    return module(device)


def module(device: torch.device, *replacing: type[Named]) -> SimpleNamespace:
    """All names on one device; a class of `replacing` stands for the one of its name."""
    names = SimpleNamespace(device=device)
    kinds: list[type[Named]] = [UvaBuffer, NonUvaBuffer, UvaBufferPool, UvaBackedTensor]
    for kind in (*kinds, StagedWriteTensor, FusedStagedWriter, *replacing):
        setattr(names, kind.__name__, type(kind.__name__, (kind,), {"names": names}))
    return names


class Named:
    """What every class has: the names that it belongs to, and their device."""

    names: ClassVar[Any]


class NonUvaBuffer(Named):
    """Host memory and a twin on the device, which `uva` brings up to date."""

    def __init__(self, size: Size, dtype: torch.dtype) -> None:
        self.cpu = torch.zeros(size, dtype=dtype)
        self._twin = torch.zeros(size, dtype=dtype, device=self.names.device)

    @property
    def np(self) -> np.ndarray[Any, Any]:
        array: np.ndarray[Any, Any] = self.cpu.numpy()
        return array

    def uva(self, n: int | None = None) -> torch.Tensor:
        stop = len(self.cpu) if n is None else n
        return self._twin[:stop].copy_(self.cpu[:stop])


class UvaBuffer(Named):
    """Host memory and the device's live view of it; pinned where the device is a GPU."""

    def __init__(self, size: Size, dtype: torch.dtype) -> None:
        shape = (size,) if isinstance(size, int) else tuple(size)
        raw = self.allocate(math.prod(shape) * dtype.itemsize)
        self.cpu, self._alias = (part.view(dtype).view(shape) for part in (raw, self.alias(raw)))

    def allocate(self, nbytes: int) -> torch.Tensor:
        return torch.zeros(nbytes, dtype=torch.uint8, pin_memory=self.names.device.type == "cuda")

    def alias(self, raw: torch.Tensor) -> torch.Tensor:
        """The device's view of all bytes."""
        return alias_of(raw, self.names.device) if self.names.device.type == "cuda" else raw

    @property
    def np(self) -> np.ndarray[Any, Any]:
        array: np.ndarray[Any, Any] = self.cpu.numpy()
        return array

    def uva(self, n: int | None = None) -> torch.Tensor:
        return self._alias if n is None else self._alias[:n]


class UvaBufferPool(Named):
    """Slots used in turn."""

    def __init__(self, size: Size, dtype: torch.dtype, max_concurrency: int | None = None) -> None:
        self.trailing = () if isinstance(size, int) else tuple(size[1:])
        self.dtype, self.max_concurrency = dtype, max_concurrency or _DEPTH
        self.slots = [self.names.UvaBuffer(size, dtype) for _ in range(self.max_concurrency)]
        self.current = 0

    def copy_to_uva(self, x: Any) -> torch.Tensor:
        x = torch.as_tensor(x, dtype=self.dtype)
        self.current = self.next_slot()
        if len(x) > len(self.slots[self.current].cpu):
            self.grow(1 << (len(x) - 1).bit_length())
        return self.filled(self.slots[self.current], x)

    def copy_to_gpu(self, x: Any, out: torch.Tensor | None = None) -> torch.Tensor:
        source = self.copy_to_uva(x)
        return source.clone() if out is None else out.copy_(source, non_blocking=True)

    def next_slot(self) -> int:
        return (self.current + 1) % len(self.slots)

    def grow(self, num_rows: int) -> None:
        """Larger memory for the slot that is next; its own readers are done."""
        self.slots[self.current] = self.larger(num_rows)

    def larger(self, num_rows: int) -> Any:
        return self.names.UvaBuffer((num_rows, *self.trailing), self.dtype)

    def filled(self, buffer: Any, x: torch.Tensor) -> torch.Tensor:
        """Write rows into a buffer; what the device sees of them."""
        buffer.cpu[: len(x)] = x
        view: torch.Tensor = buffer.uva(len(x))
        return view


class UvaBackedTensor(Named):
    """A host array, of which each publish hands out a copy."""

    def __init__(self, size: Size, dtype: torch.dtype, max_concurrency: int | None = None) -> None:
        self.cpu = torch.zeros(size, dtype=dtype)
        self.pool = self.names.UvaBufferPool(size, dtype, max_concurrency)
        self.gpu = self.copy_to_uva()

    @property
    def np(self) -> np.ndarray[Any, Any]:
        array: np.ndarray[Any, Any] = self.cpu.numpy()
        return array

    def copy_to_uva(self, n: int | None = None) -> torch.Tensor:
        self.gpu = self.pool.copy_to_uva(self.cpu if n is None else self.cpu[:n])
        return self.gpu


class StagedWriteTensor(Named):
    """A device tensor, written one staged write after the other: `staged` has (flat place, values)."""

    def __init__(
        self,
        size: Size,
        dtype: torch.dtype,
        device: torch.device,
        max_concurrency: int | None = None,
        uva_instead_of_gpu: bool = False,
    ) -> None:
        mapped = uva_instead_of_gpu
        self.gpu = self.names.UvaBuffer(size, dtype).uva() if mapped else torch.zeros(size, dtype=dtype, device=device)
        self.staged: list[tuple[int, torch.Tensor]] = []

    def stage_write(self, index: int, start: int, x: Any) -> None:
        given = x if isinstance(x, torch.Tensor | np.ndarray) else list(x)
        values = torch.as_tensor(given, dtype=self.gpu.dtype).clone()
        if not len(values):
            return
        self.check(index, start, len(values))
        self.staged.append((self.place(index, start), values))

    def stage_write_elem(self, index: int, x: Any) -> None:
        self.stage_write(index, 0, [x])

    def apply_write(self) -> None:
        for place, values in self.staged:
            self.gpu.view(-1)[place : place + len(values)] = values.to(self.gpu.device)
        self.staged.clear()

    def clear_staged_writes(self) -> None:
        self.staged.clear()

    def check(self, index: int, start: int, length: int) -> None:
        """IndexError for what is not within one row."""
        num_rows, flat = len(self.gpu), self.gpu.dim() == 1
        first, end = (index + start, num_rows) if flat else (start, self.gpu.shape[1])
        if not (0 <= first <= first + length <= end and 0 <= index < num_rows):
            raise IndexError(f"{length} values at row {index}, offset {start} of {tuple(self.gpu.shape)}")

    def place(self, index: int, start: int) -> int:
        """The flat index of an element."""
        return index * self.gpu.stride(0) + start


class FusedStagedWriter(Named):
    """Applies one tensor after the other."""

    def __init__(self, device: torch.device, max_writes: int, max_concurrency: int | None = None) -> None:
        self.device = device

    def apply(self, tensors: Any, output_ptrs: Any, output_strides: Any) -> None:
        for tensor in tensors:
            tensor.apply_write()
