"""CUDA by explicit copy: every publish copies pinned host memory to a twin on the device, in stream order."""

from __future__ import annotations

import torch

from staging.backend import Block
from staging.backends._cuda import CudaBackend


class CudaCopyBackend(CudaBackend):
    """For systems where the device cannot read host memory in place; the host waits for copies, not readers."""

    name = "cuda_copy"

    def allocate(self, nbytes: int, *, mapped: bool = True, pinned: bool = True) -> Block:
        return self.allocate_twin(nbytes, pinned=pinned)


def create(device: torch.device) -> CudaCopyBackend:
    """The backend of a CUDA device; raises ValueError where there is none."""
    return CudaCopyBackend(device)
