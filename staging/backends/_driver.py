"""The CUDA driver calls of the hot path, straight through ctypes: torch reaches them in several microseconds.

Writes and waits of a 64-bit word in stream order, and a kernel launch. Source: the CUDA driver API's stream memory
operations (cuStreamWriteValue64, cuStreamWaitValue64) and cuLaunchKernel.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

_WAIT_GEQ = 0


class Driver:
    """Bound driver functions; raises OSError or AttributeError where the driver has none (ROCm, old drivers)."""

    def __init__(self) -> None:
        cuda = ctypes.CDLL("libcuda.so.1")
        self._write, self._wait, self._launch = (
            getattr(cuda, name) for name in ("cuStreamWriteValue64_v2", "cuStreamWaitValue64_v2", "cuLaunchKernel")
        )
        self._write.argtypes = self._wait.argtypes = [
            ctypes.c_void_p,
            ctypes.c_uint64,
            ctypes.c_uint64,
            ctypes.c_uint,
        ]
        unsigned = ctypes.c_uint
        self._launch.argtypes = [ctypes.c_void_p, *[unsigned] * 7, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]

    def write_word(self, stream: int, address: int, value: int) -> None:
        """Set the word at `address` once all earlier work of `stream` is done."""
        _check(self._write(stream, address, value, 0), "cuStreamWriteValue64")

    def wait_word(self, stream: int, address: int, value: int) -> None:
        """Let later work of `stream` wait until the word at `address` is at least `value`."""
        _check(self._wait(stream, address, value, _WAIT_GEQ), "cuStreamWaitValue64")

    def launcher(self, function: int, *, num_threads: int, shared_nbytes: int) -> Callable[[int, int, int], None]:
        """A launch of a Triton kernel with the arguments (pointer, int32), as (stream, pointer, number of programs).

        Triton appends up to two scratch pointers to a kernel's arguments; they are null here.
        """
        pointer, count, scratch = ctypes.c_uint64(), ctypes.c_int32(), ctypes.c_uint64(0)
        addresses = [ctypes.addressof(value) for value in (pointer, count, scratch, scratch)]
        arguments = (ctypes.c_void_p * 4)(*addresses)
        launch = self._launch

        def call(stream: int, first: int, num_programs: int, _keep: object = (pointer, count, scratch)) -> None:
            pointer.value, count.value = first, num_programs
            _check(
                launch(function, num_programs, 1, 1, num_threads, 1, 1, shared_nbytes, stream, arguments, None),
                "cuLaunchKernel",
            )

        return call


def _check(code: int, name: str) -> None:
    if code:
        raise RuntimeError(f"CUDA error {code} in {name}")
