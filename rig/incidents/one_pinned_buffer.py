"""One pinned buffer per object, rewritten every step however many steps are in flight."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from rig.incidents._steps import RACES, pools, publish, steps
from rig.ops import Op

if TYPE_CHECKING:
    import torch

NUMBER = 2
SUMMARY = "one pinned buffer per object, rewritten every step"
FIX = "as many slots as steps may be in flight, used in turn"
THREADS = ("vllm#31841", "vllm#48085")
KIND = "slot_reuse"
BACKENDS = RACES


def ops(rng: random.Random) -> list[Op]:
    """A pool of two slots, published every step with two steps in flight."""
    return steps(pools("block_table"), lambda number: publish("block_table"))


def buggy(device: torch.device) -> Any:
    from rig.targets import unfenced

    class UvaBufferPool(unfenced.UvaBufferPool):
        def next_slot(self) -> int:
            return 0  # whatever max_concurrency says

    return unfenced.module(device, UvaBufferPool)


def fixed(device: torch.device) -> Any:
    from rig.targets import unfenced

    return unfenced.module(device)
