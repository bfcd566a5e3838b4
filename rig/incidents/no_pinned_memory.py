"""A host that grants no pinned memory, where a flag said that it does."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from rig.incidents._steps import ALL, pools, publish, steps
from rig.ops import Op

if TYPE_CHECKING:
    import torch

NUMBER = 12
SUMMARY = "no pinned memory, but a flag is believed: the first publish crashes"
FIX = "a refusal is taken for an answer: ordinary memory and a copy, with the reason kept"
THREADS = ("vllm#47387", "vllm#54652")
KIND = "exception"
BACKENDS = ALL


def ops(rng: random.Random) -> list[Op]:
    """Two steps in flight."""
    return steps(pools("table"), lambda number: publish("table"))


def check(module: Any, device: torch.device) -> str | None:
    """Whether a pool falls back, and says why."""
    import torch

    module.UvaBufferPool(8, torch.int32, 2).copy_to_uva([1])
    return None if getattr(module, "fallback", "") else "it fell back and gave no reason"


def buggy(device: torch.device) -> Any:
    from rig.targets import unfenced

    class UvaBuffer(unfenced.UvaBuffer):
        def allocate(self, nbytes: int) -> torch.Tensor:
            return _refused(nbytes)

    class UvaBufferPool(unfenced.UvaBufferPool):
        def __init__(self, size: unfenced.Size, dtype: torch.dtype, max_concurrency: int | None = None) -> None:
            self.asked = size, dtype, max_concurrency  # the flag says that memory can be pinned when it is needed

        def copy_to_uva(self, x: Any) -> torch.Tensor:
            super().__init__(*self.asked)
            return super().copy_to_uva(x)

    return unfenced.module(device, UvaBuffer, UvaBufferPool)


def fixed(device: torch.device) -> Any:
    from rig.targets import unfenced

    class UvaBuffer(unfenced.NonUvaBuffer):
        def __init__(self, size: unfenced.Size, dtype: torch.dtype) -> None:
            try:
                _refused(1)
            except RuntimeError as error:
                self.names.fallback = f"ordinary memory, copied to the device: {error}"
            super().__init__(size, dtype)

    return unfenced.module(device, UvaBuffer)


def _refused(nbytes: int) -> torch.Tensor:
    """A host that does not lock pages."""
    raise RuntimeError(f"the host refuses to lock {nbytes} bytes")
