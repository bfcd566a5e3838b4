"""A correct module with upstream's names and upstream's contract: no fences, plain torch.

Tests plant faults by replacing one line; see faults.py.
"""

import numpy as np
import torch

ON_GPU = torch.cuda.is_available()
_default_depth = 2


def set_default_max_concurrency(n):
    global _default_depth
    _default_depth = max(2, n)


class _Pinned:
    """Pinned memory as an array of the device."""

    def __init__(self, host):
        self.host = host
        flat = {"shape": (host.numel(),), "typestr": "|u1", "data": (host.data_ptr(), False), "version": 3}
        self.__cuda_array_interface__ = flat


def _both(size, dtype):
    """Host memory and the device's live view of it."""
    shape = (size,) if isinstance(size, int) else tuple(size)
    nbytes = int(np.prod(shape)) * dtype.itemsize
    host = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=ON_GPU)
    device = torch.as_tensor(_Pinned(host), device="cuda") if ON_GPU else host
    return host.view(dtype).view(shape), device.view(dtype).view(shape)


class UvaBuffer:
    def __init__(self, size, dtype):
        self.cpu, self._alias = _both(size, dtype)
        self.np = self.cpu.numpy() if dtype != torch.bfloat16 else None

    def uva(self, n=None):
        return self._alias if n is None else self._alias[:n]


class NonUvaBuffer:
    def __init__(self, size, dtype):
        self.cpu = torch.zeros(size, dtype=dtype)
        self.np = self.cpu.numpy() if dtype != torch.bfloat16 else None
        self._twin = torch.zeros(size, dtype=dtype, device="cuda" if ON_GPU else "cpu")

    def uva(self, n=None):
        n = len(self.cpu) if n is None else n
        self._twin[:n].copy_(self.cpu[:n])
        return self._twin[:n]


class UvaBufferPool:
    def __init__(self, size, dtype, max_concurrency=None):
        self.size, self.dtype = size, dtype
        self.max_concurrency = max_concurrency or _default_depth
        self._slots = [UvaBuffer(size, dtype) for _ in range(self.max_concurrency)]
        self._current = 0

    def copy_to_uva(self, x):
        x = torch.as_tensor(x, dtype=self.dtype)
        self._current = (self._current + 1) % self.max_concurrency
        if len(x) > len(self._slots[self._current].cpu):
            self._grow(1 << (len(x) - 1).bit_length(), x.shape[1:])
        slot = self._slots[self._current]
        slot.cpu[: len(x)] = x
        return slot.uva(len(x))

    def copy_to_gpu(self, x, out=None):
        view = self.copy_to_uva(x)
        return view.clone() if out is None else out.copy_(view, non_blocking=True)

    def _grow(self, rows, trailing):
        self._slots[self._current] = UvaBuffer((rows, *trailing), self.dtype)


class UvaBackedTensor:
    def __init__(self, size, dtype, max_concurrency=None):
        self.cpu = torch.zeros(size, dtype=dtype)
        self.np = self.cpu.numpy() if dtype != torch.bfloat16 else None
        self.pool = UvaBufferPool(size, dtype, max_concurrency)
        self.gpu = self.copy_to_uva()

    def copy_to_uva(self, n=None):
        self.gpu = self.pool.copy_to_uva(self.cpu if n is None else self.cpu[:n])
        return self.gpu


class StagedWriteTensor:
    def __init__(self, size, dtype, device, max_concurrency=None, uva_instead_of_gpu=False):
        if dtype not in (torch.int32, torch.int64, torch.float32):
            raise ValueError(f"dtype {dtype} is not supported")
        self.dtype, self.device = dtype, device
        self.gpu = _both(size, dtype)[1] if uva_instead_of_gpu else torch.zeros(size, dtype=dtype, device=device)
        self._staged = []

    def stage_write(self, index, start, x):
        x = list(x)
        if x:
            self._staged.append((index, start, x))

    def stage_write_elem(self, index, x):
        self._staged.append((index, 0, [x]))

    def apply_write(self):
        flat, width = self.gpu.view(-1), self.gpu.stride(0)
        for index, start, x in self._staged:
            first = index * width + start
            flat[first : first + len(x)] = torch.tensor(x, dtype=self.dtype).to(self.gpu.device)
        self._staged.clear()

    def clear_staged_writes(self):
        self._staged.clear()


class FusedStagedWriter:
    def __init__(self, device, max_writes, max_concurrency=None):
        self.device = device

    def apply(self, tensors, output_ptrs, output_strides):
        assert output_ptrs.dtype == torch.uint64
        assert output_strides.tolist() == [tensor.gpu.stride(0) for tensor in tensors]
        for tensor in tensors:
            tensor.apply_write()
