"""CUDA by explicit copy: every publish copies host memory to a twin on the device, in stream order."""

from __future__ import annotations

import torch

from staging.backend import Block
from staging.backends._cuda import CudaBackend


class CudaCopyBackend(CudaBackend):
    """For systems where the device cannot read host memory in place; the host waits for copies, not readers.

    Where the system grants no pinned memory at all, copies come from pageable memory and are synchronous.
    """

    name = "cuda_copy"

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._why_pageable = ""
        try:
            self.pinned_zeros(1)
        except RuntimeError as error:
            self._why_pageable = str(error).splitlines()[0]

    def allocate(self, nbytes: int, *, mapped: bool = True, pinned: bool = True) -> Block:
        return self.allocate_twin(nbytes, pinned=pinned and not self._why_pageable)

    def note(self) -> str:
        pageable = f"; pageable memory, copies are synchronous: {self._why_pageable}" if self._why_pageable else ""
        return super().note() + pageable


def create(device: torch.device) -> CudaCopyBackend:
    """The backend of a CUDA device; raises ValueError where there is none."""
    return CudaCopyBackend(device)
