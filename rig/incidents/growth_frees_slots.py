"""Growth frees memory that queued readers still need."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from rig.incidents._steps import RACES, ROWS, pools, publish, steps
from rig.ops import Op

if TYPE_CHECKING:
    import torch

NUMBER = 10
SUMMARY = "growth frees the old slots under queued readers"
FIX = "only the slot that is next grows, whose own readers are done"
THREADS = ("vllm#55819",)
KIND = "use_after_free"
BACKENDS = RACES


def ops(rng: random.Random) -> list[Op]:
    """Every third step publishes twice as much as any before."""

    def each(number: int) -> list[Op]:
        return publish("table", num_rows=ROWS << number // 3)

    return steps(pools("table"), each)


def buggy(device: torch.device) -> Any:
    from rig.targets import unfenced

    class UvaBufferPool(unfenced.UvaBufferPool):
        def grow(self, num_rows: int) -> None:
            self.slots = [self.larger(num_rows) for _ in self.slots]  # also those that are being read

    return unfenced.module(device, UvaBufferPool)


def fixed(device: torch.device) -> Any:
    from rig.targets import unfenced

    return unfenced.module(device)
