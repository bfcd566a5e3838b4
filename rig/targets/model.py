"""Always right, because nothing is ever reused: each publish gets fresh memory and each call waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

SUMMARY = "fresh memory for every publish; slow and always right, the clean twin of the controls"

Size = int | tuple[int, ...]
_DEPTH = 2  # where none is given


def load(*, fault: str | None, device: torch.device) -> Any:
    """The names of upstream's module, for one device."""
    if fault is not None:
        raise ValueError(f"target model has no fault {fault!r}; see target faulty")

    class OnDevice(_OnDevice):
        home = device

    kinds = (UvaBuffer, NonUvaBuffer, UvaBufferPool, UvaBackedTensor)
    here = {kind.__name__: type(kind.__name__, (kind, OnDevice), {}) for kind in kinds}
    return SimpleNamespace(**here, StagedWriteTensor=StagedWriteTensor, FusedStagedWriter=FusedStagedWriter)


class _OnDevice:
    home: torch.device

    def fresh(self, values: Any, dtype: torch.dtype) -> torch.Tensor:
        """A copy in new device memory; the host waits for it."""
        return torch.as_tensor(values, dtype=dtype).to(self.home, copy=True)


class UvaBuffer(_OnDevice):
    """A host tensor and its twin in device memory, which `uva` brings up to date."""

    def __init__(self, size: Size, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.cpu = torch.zeros(size, dtype=dtype)
        self._twin = self.fresh(self.cpu, dtype)

    @property
    def np(self) -> np.ndarray[Any, Any]:
        array: np.ndarray[Any, Any] = self.cpu.numpy()
        return array

    def uva(self, n: int | None = None) -> torch.Tensor:
        part = self._twin if n is None else self._twin[:n]
        return part.copy_(self.cpu if n is None else self.cpu[:n])


class NonUvaBuffer(UvaBuffer):
    """The same."""


class UvaBufferPool(_OnDevice):
    """No slots: whoever publishes gets memory of its own."""

    def __init__(self, size: Size, dtype: torch.dtype, max_concurrency: int | None = None) -> None:
        self.dtype = dtype

    def copy_to_uva(self, x: Any) -> torch.Tensor:
        return self.fresh(x, self.dtype)

    def copy_to_gpu(self, x: Any, out: torch.Tensor | None = None) -> torch.Tensor:
        return self.fresh(x, self.dtype) if out is None else out.copy_(self.fresh(x, self.dtype))


class UvaBackedTensor(UvaBuffer):
    """A host tensor whose last snapshot is `.gpu`; earlier ones live on for readers that are still queued."""

    def __init__(self, size: Size, dtype: torch.dtype, max_concurrency: int | None = None) -> None:
        super().__init__(size, dtype)
        self.gpu = self.fresh(self.cpu, dtype)
        self._earlier: deque[torch.Tensor] = deque(maxlen=max_concurrency or _DEPTH)

    def copy_to_uva(self, n: int | None = None) -> torch.Tensor:
        self._earlier.append(self.gpu)
        self.gpu = self.fresh(self.cpu if n is None else self.cpu[:n], self.dtype)
        return self.gpu


class StagedWriteTensor:
    """A device tensor, written one staged write after the other."""

    def __init__(
        self,
        size: Size,
        dtype: torch.dtype,
        device: torch.device,
        max_concurrency: int | None = None,
        uva_instead_of_gpu: bool = False,
    ) -> None:
        self.gpu = torch.zeros(size, dtype=dtype, device=device)
        self._staged: list[tuple[torch.Tensor, torch.Tensor]] = []

    def stage_write(self, index: int, start: int, x: Any) -> None:
        values = torch.as_tensor(x, dtype=self.gpu.dtype).clone()
        row, first = (self.gpu, index + start) if self.gpu.dim() == 1 else (self._row(index), start)
        if not 0 <= first <= first + len(values) <= len(row):
            raise IndexError(f"elements {first} to {first + len(values)} of a row of {len(row)}")
        self._staged.append((row[first : first + len(values)], values))

    def stage_write_elem(self, index: int, x: Any) -> None:
        self.stage_write(index, 0, [x])

    def apply_write(self) -> None:
        for place, values in self._staged:
            place.copy_(values)
        self._staged.clear()

    def clear_staged_writes(self) -> None:
        self._staged.clear()

    def _row(self, index: int) -> torch.Tensor:
        if not 0 <= index < len(self.gpu):
            raise IndexError(f"row {index} of {len(self.gpu)}")
        return self.gpu[index]


class FusedStagedWriter:
    """Applies one tensor after the other."""

    def __init__(self, device: torch.device, max_writes: int, max_concurrency: int | None = None) -> None:
        self.device = device

    def apply(self, tensors: Sequence[Any], output_ptrs: Any = None, output_strides: Any = None) -> None:
        for tensor in tensors:
            tensor.apply_write()
