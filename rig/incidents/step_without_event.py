"""One kind of step records no event, so the host has nothing to wait for and slots come up for reuse too early."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from rig.incidents._steps import RACES, pools, publish, steps
from rig.ops import Op

if TYPE_CHECKING:
    import torch

NUMBER = 3
SUMMARY = "a kind of step moves no slot on, since another pool's publish is what counts steps"
FIX = "each pool counts its own publishes, whatever else a step does"
THREADS = ("vllm#53057", "vllm#53176")
KIND = "slot_reuse"
BACKENDS = RACES


def ops(rng: random.Random) -> list[Op]:
    """Full steps publish both pools; every other step publishes the drafts alone."""

    def each(number: int) -> list[Op]:
        return [*(publish("input_ids") if number % 2 else []), *publish("draft_ids")]

    return steps(pools("input_ids", "draft_ids"), each)


def buggy(device: torch.device) -> Any:
    from rig.targets import unfenced

    class UvaBufferPool(unfenced.UvaBufferPool):
        def __init__(self, size: unfenced.Size, dtype: torch.dtype, max_concurrency: int | None = None) -> None:
            super().__init__(size, dtype, max_concurrency)
            if not hasattr(self.names, "recorder"):
                self.names.recorder, self.names.num_steps = self, 0

        def next_slot(self) -> int:
            self.names.num_steps += self is self.names.recorder  # only the first pool's publish ends a step
            return int(self.names.num_steps) % len(self.slots)

    return unfenced.module(device, UvaBufferPool)


def fixed(device: torch.device) -> Any:
    from rig.targets import unfenced

    return unfenced.module(device)
