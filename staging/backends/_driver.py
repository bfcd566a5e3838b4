"""The CUDA driver calls of the hot path, straight through ctypes: torch reaches them in several microseconds.

Writes and waits of a word in stream order, a copy, and a kernel launch. Source: the CUDA driver API's stream memory
operations (cuStreamWriteValue64, cuStreamWaitValue64), cuMemcpyAsync and cuLaunchKernelEx.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

_WAIT_GEQ = 0

Launch = Callable[[int, int, int, int], None]
"""Queues a kernel on a stream (a raw handle), given the address of its argument and the number of programs, in two
dimensions."""


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        *[(name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")],
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("num_attributes", ctypes.c_uint),
    )


class Driver:
    """Bound driver functions; raises OSError or AttributeError where the driver has none (ROCm, old drivers).

    Their arguments are kept as C values between calls, since making them anew takes as long as the call: one thread
    at a time.
    """

    def __init__(self) -> None:
        cuda = ctypes.CDLL("libcuda.so.1")
        self._write, self._wait, self._launch, self._memcpy = (
            getattr(cuda, name)
            for name in ("cuStreamWriteValue64_v2", "cuStreamWaitValue64_v2", "cuLaunchKernelEx", "cuMemcpyAsync")
        )
        self._copied = (ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_void_p())
        self._word = (ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint(0))
        self._wait.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint]

    def write_word(self, stream: int, address: int, value: int) -> None:
        """Set the word at `address` once all earlier work of `stream` is done."""
        handle, where, what, flags = self._word
        handle.value, where.value, what.value = stream, address, value
        code = self._write(handle, where, what, flags)
        if code:
            _check(code, "cuStreamWriteValue64")

    def copy(self, stream: int, address: int, source: int, nbytes: int) -> None:
        """Copy bytes between two addresses, device memory or pinned, in the stream's order."""
        where, whence, count, handle = self._copied
        where.value, whence.value, count.value, handle.value = address, source, nbytes, stream
        code = self._memcpy(where, whence, count, handle)
        if code:
            _check(code, "cuMemcpyAsync")

    def wait_word(self, stream: int, address: int, value: int) -> None:
        """Let later work of `stream` wait until the word at `address` is at least `value`."""
        _check(self._wait(stream, address, value, _WAIT_GEQ), "cuStreamWaitValue64")

    def launcher(self, function: int, *, num_threads: int, shared_nbytes: int) -> Launch:
        """A launch of a Triton kernel with the arguments (pointer, int32: programs in the first
        dimension).

        Triton appends up to two scratch pointers to a kernel's arguments; they are null here.
        """
        pointer, count, scratch = ctypes.c_uint64(), ctypes.c_int32(), ctypes.c_uint64(0)
        addresses = [ctypes.addressof(value) for value in (pointer, count, scratch, scratch)]
        values = (ctypes.c_void_p * 4)(*addresses)
        config = _Config(1, 1, 1, num_threads, 1, 1, shared_nbytes, None, None, 0)
        kept = pointer, count, scratch, values, config
        where, kernel, arguments, none = map(ctypes.c_void_p, _addresses(config, function, values))
        launch = self._launch

        def call(stream: int, first: int, num_x: int, num_y: int, _keep: object = kept) -> None:
            config.stream, config.grid_x, config.grid_y = stream, num_x, num_y
            pointer.value, count.value = first, num_x
            code = launch(where, kernel, arguments, none)
            if code:
                _check(code, "cuLaunchKernelEx")

        return call


def _addresses(config: _Config, function: int, values: ctypes.Array[ctypes.c_void_p]) -> tuple[int | None, ...]:
    return ctypes.addressof(config), function, ctypes.addressof(values), None


def _check(code: int, name: str) -> None:
    if code:
        raise RuntimeError(f"CUDA error {code} in {name}")
