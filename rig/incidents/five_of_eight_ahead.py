"""Five of a step's buffers carry the next step's contents at the same address; the others are right."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, ClassVar

from rig.incidents._steps import RACES, pools, publish, steps
from rig.ops import Op

if TYPE_CHECKING:
    import torch

NUMBER = 6
SUMMARY = "five of eight buffers hold the next step's contents at the same address"
FIX = "all buffers of a step are rotated together"
THREADS = ("vllm-ascend#16428",)
KIND = "slot_reuse"
BACKENDS = RACES
NAMES = tuple(f"input{index}" for index in range(8))
NUM_AHEAD = 5


def ops(rng: random.Random) -> list[Op]:
    """Eight inputs, published together every step."""
    return steps(pools(*NAMES), lambda number: [op for name in NAMES for op in publish(name)], num_steps=6)


def buggy(device: torch.device) -> Any:
    from rig.targets import unfenced

    class UvaBufferPool(unfenced.UvaBufferPool):
        num_made: ClassVar[int] = 0

        def __init__(self, size: unfenced.Size, dtype: torch.dtype, max_concurrency: int | None = None) -> None:
            super().__init__(size, dtype, max_concurrency)
            type(self).num_made += 1
            self.rotates = self.num_made > NUM_AHEAD

        def next_slot(self) -> int:
            return super().next_slot() if self.rotates else self.current  # in place, one step ahead of its readers

    return unfenced.module(device, UvaBufferPool)


def fixed(device: torch.device) -> Any:
    from rig.targets import unfenced

    return unfenced.module(device)
