"""Staged buffers between host and device: pinned memory, pools and staged writes, safe by construction.

The names are those of the module that inference engines use today; see README.md for the rules they keep.
Importing this needs no GPU, starts no CUDA context, and imports neither Triton nor Ray.
"""

from typing import Any

from staging.backed import UvaBackedTensor
from staging.buffer import NonUvaBuffer, UvaBuffer
from staging.defaults import default_manager, set_default_manager, set_default_max_concurrency
from staging.errors import (
    BackendUnavailableError,
    ClosedError,
    ConcurrentUseError,
    DeviceLostError,
    MemoryLimitError,
    SlotInUseError,
    StagingError,
)
from staging.fused import FusedStagedWriter
from staging.graph import HeldSlot
from staging.manager import DeviceMemoryManager
from staging.pool import Lease, UvaBufferPool
from staging.staged import StagedWriteTensor
from staging.transfer import async_tensor_h2d

__all__ = [
    "BackendUnavailableError",
    "ClosedError",
    "ConcurrentUseError",
    "DeviceLostError",
    "DeviceMemoryManager",
    "FusedStagedWriter",
    "HeldSlot",
    "Lease",
    "MemoryLimitError",
    "NonUvaBuffer",
    "SlotInUseError",
    "StagedWriteTensor",
    "StagingError",
    "UvaBackedTensor",
    "UvaBuffer",
    "UvaBufferPool",
    "async_tensor_h2d",
    "default_manager",
    "set_default_manager",
    "set_default_max_concurrency",
]


def __getattr__(name: str) -> Any:
    """`_load_ptr`, a Triton function that engines' kernels use, is loaded when asked for."""
    if name == "_load_ptr":
        from staging.kernels import load_ptr

        return load_ptr
    raise AttributeError(f"module 'staging' has no attribute {name!r}")
