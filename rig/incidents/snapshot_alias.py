"""What should be a live view of host memory is a copy made once, as where the driver cannot map pages."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from rig.incidents._steps import pools, publish, steps
from rig.ops import Op

if TYPE_CHECKING:
    import torch

NUMBER = 11
SUMMARY = "the alias of host memory is a snapshot, so later writes are never seen"
FIX = "the device's view is of the same memory, and was seen to be"
THREADS = ("vllm#57224", "vllm#57404")
KIND = "stale_alias"
BACKENDS = ("sim", "cpu", "cuda_uva")


def ops(rng: random.Random) -> list[Op]:
    """One step at a time: not a race."""
    return steps(pools("table"), lambda number: publish("table"), in_flight=1)


def buggy(device: torch.device) -> Any:
    from rig.targets import unfenced

    class UvaBuffer(unfenced.UvaBuffer):
        def alias(self, raw: torch.Tensor) -> torch.Tensor:
            return super().alias(raw).clone()

    return unfenced.module(device, UvaBuffer)


def fixed(device: torch.device) -> Any:
    from rig.targets import unfenced

    return unfenced.module(device)
