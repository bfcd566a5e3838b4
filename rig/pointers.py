"""Where the host sees memory that a device sees; straight through the driver, since torch does not tell."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache

_MEMORY_TYPE, _HOST_POINTER = 2, 4  # of CUpointer_attribute
_HOST_MEMORY = 1  # of CUmemorytype


def host_address(address: int) -> int | None:
    """The host's address of pinned memory that the device sees at `address`; None for device memory, and where the
    driver does not say. Source: cuPointerGetAttribute of the CUDA driver API.
    """
    ask, kind, host = _pointer_attribute(), ctypes.c_uint(), ctypes.c_void_p()
    if ask is None or ask(ctypes.byref(kind), _MEMORY_TYPE, address) or kind.value != _HOST_MEMORY:
        return None
    return None if ask(ctypes.byref(host), _HOST_POINTER, address) else host.value


@lru_cache(maxsize=1)
def _pointer_attribute() -> Callable[..., int] | None:
    try:
        ask = ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute
    except (OSError, AttributeError):
        return None
    ask.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64]
    return ask
