"""CUDA with unified addressing: the GPU reads pinned host memory in place, when its work runs."""

from __future__ import annotations

from typing import Any

import torch

from staging.backend import Block
from staging.backends._cuda import CudaBackend


class CudaUvaBackend(CudaBackend):
    """Publishing costs nothing: pinned memory and its device alias are one."""

    name = "cuda_uva"

    def allocate(self, nbytes: int, *, mapped: bool = True, pinned: bool = True) -> Block:
        if not mapped or not pinned:
            return self.allocate_twin(nbytes, pinned=pinned)
        with torch.cuda.device(self.device):
            host = self.pinned_zeros(max(nbytes, 1))
            alias = self._alias(host)
        return Block(host[:nbytes], alias[:nbytes], mapped=True, pinned=True)

    def allocate_target(self, nbytes: int, *, resident: bool = True) -> Block:
        return super().allocate_target(nbytes) if resident else self.allocate(nbytes)

    def _alias(self, host: torch.Tensor) -> torch.Tensor:
        """The device's view of pinned memory, which keeps it alive; refuses one that is not the same memory."""
        alias = torch.as_tensor(_Pinned(host), device=self.device)
        if alias.device != self.device or alias.data_ptr() != host.data_ptr():
            raise RuntimeError(
                f"the alias of pinned memory at {host.data_ptr():#x} is {alias.data_ptr():#x} on {alias.device}, not "
                f"the same address on {self.device}: the driver gives no unified addressing here"
            )
        return alias


class _Pinned:
    """Pinned memory as an array of the device, by the CUDA array interface."""

    def __init__(self, host: torch.Tensor) -> None:
        self.host = host

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.host.numel(),), "typestr": "|u1", "data": (self.host.data_ptr(), False), "version": 3}


def create(device: torch.device) -> CudaUvaBackend:
    """The backend of a CUDA device; raises ValueError where there is none."""
    return CudaUvaBackend(device)
