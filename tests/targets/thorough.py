"""A correct module with upstream's names and upstream's contract, written at length: it has much that can be broken.

No fences: depth keeps a slot from its readers. The mutation run (tests/mutants.py) breaks it in one place at a time.
"""

import numpy as np
import torch

ON_GPU = torch.cuda.is_available()
CHUNK = 1024
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


def _shape(size):
    return (size,) if isinstance(size, int) else tuple(size)


def _mapped(shape, dtype):
    """Host memory and the device's live view of it."""
    nbytes = int(np.prod(shape)) * dtype.itemsize
    host = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=ON_GPU)
    device = torch.as_tensor(_Pinned(host), device="cuda") if ON_GPU and nbytes else host
    return host.view(dtype).view(shape), device.view(dtype).view(shape)


class UvaBuffer:
    def __init__(self, size, dtype):
        self.cpu, self._alias = _mapped(_shape(size), dtype)
        self.np = self.cpu.numpy() if dtype != torch.bfloat16 else None

    def uva(self, n=None):
        if n is None:
            return self._alias
        return self._alias[:n]


class NonUvaBuffer:
    def __init__(self, size, dtype):
        self.cpu = torch.zeros(_shape(size), dtype=dtype)
        self.np = self.cpu.numpy() if dtype != torch.bfloat16 else None
        self._twin = torch.zeros(_shape(size), dtype=dtype, device="cuda" if ON_GPU else "cpu")

    def uva(self, n=None):
        stop = len(self.cpu) if n is None else n
        self._twin[:stop].copy_(self.cpu[:stop])
        return self._twin[:stop]


class UvaBufferPool:
    def __init__(self, size, dtype, max_concurrency=None):
        self.dtype = dtype
        self.max_concurrency = max_concurrency or _default_depth
        self._trailing = _shape(size)[1:]
        self._slots = [UvaBuffer(size, dtype) for _ in range(self.max_concurrency)]
        self._current = 0

    def copy_to_uva(self, x):
        values = x if isinstance(x, torch.Tensor) else torch.as_tensor(x, dtype=self.dtype)
        num_rows = len(values)
        following = (self._current + 1) % self.max_concurrency
        if num_rows > len(self._slots[following].cpu):
            rows = 1 << (num_rows - 1).bit_length()
            self._slots[following] = UvaBuffer((rows, *self._trailing), self.dtype)
        slot = self._slots[following]
        slot.cpu[:num_rows].copy_(values)
        self._current = following
        return slot.uva(num_rows)

    def copy_to_gpu(self, x, out=None):
        source = self.copy_to_uva(x)
        if out is None:
            return source.clone()
        out.copy_(source, non_blocking=True)
        return out


class UvaBackedTensor:
    def __init__(self, size, dtype, max_concurrency=None):
        self.cpu = torch.zeros(_shape(size), dtype=dtype)
        self.np = self.cpu.numpy() if dtype != torch.bfloat16 else None
        self.pool = UvaBufferPool(size, dtype, max_concurrency)
        self._published = None
        self.gpu = self.copy_to_uva()

    def copy_to_uva(self, n=None):
        rows = len(self.cpu) if n is None else n
        now = self.cpu[:rows].clone().view(torch.uint8)
        if self._published is not None and torch.equal(self._published, now):
            return self.gpu
        self._published = now
        self.gpu = self.pool.copy_to_uva(self.cpu[:rows])
        return self.gpu


class StagedWriteTensor:
    def __init__(self, size, dtype, device, max_concurrency=None, uva_instead_of_gpu=False):
        if dtype not in (torch.int32, torch.int64, torch.float32):
            raise ValueError(f"dtype {dtype} is not supported")
        self.dtype, self.device = dtype, device
        shape = _shape(size)
        self.gpu = _mapped(shape, dtype)[1] if uva_instead_of_gpu else torch.zeros(shape, dtype=dtype, device=device)
        self.width = shape[1] if len(shape) == 2 else 1
        self.contents = UvaBufferPool(CHUNK, dtype, max_concurrency)
        self._places = []
        self._lengths = []
        self._values = []

    def stage_write(self, index, start, x):
        values = list(x)
        if not values:
            return
        self._places.append(int(index) * self.width + int(start))
        self._lengths.append(len(values))
        self._values.extend(values)

    def stage_write_elem(self, index, x):
        self._places.append(int(index) * self.width)
        self._lengths.append(1)
        self._values.append(x)

    def apply_write(self):
        if not self._places:
            return
        packed = self.contents.copy_to_uva(torch.tensor(self._values, dtype=self.dtype))
        scatter(packed, self._places, self._lengths, self.gpu)
        self.clear_staged_writes()

    def clear_staged_writes(self):
        self._places.clear()
        self._lengths.clear()
        self._values.clear()


def scatter(packed, places, lengths, target):
    """Write after write, in order, at most CHUNK elements at a time."""
    flat = target.view(-1)
    begin = 0
    for place, length in zip(places, lengths, strict=True):
        for offset in range(0, length, CHUNK):
            count = min(CHUNK, length - offset)
            first = begin + offset
            flat[place + offset : place + offset + count].copy_(packed[first : first + count])
        begin += length


class FusedStagedWriter:
    def __init__(self, device, max_writes, max_concurrency=None):
        self.device, self.max_writes = device, max_writes
        self.contents = UvaBufferPool(CHUNK, torch.int32, max_concurrency)

    def apply(self, tensors, output_ptrs, output_strides):
        values = [value for tensor in tensors for value in tensor._values]
        if not values:
            return
        packed = self.contents.copy_to_uva(torch.tensor(values, dtype=torch.int32))
        begin = 0
        for tensor in tensors:
            count = sum(tensor._lengths)
            scatter(packed[begin : begin + count], tensor._places, tensor._lengths, tensor.gpu)
            begin += count
            tensor.clear_staged_writes()
