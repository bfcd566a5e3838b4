"""A depth that was right for one scheduler, and is one short for a pipeline with one more step in flight."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from rig.incidents._steps import RACES, pools, publish, steps
from rig.ops import Op

if TYPE_CHECKING:
    import torch

NUMBER = 5
SUMMARY = "a fixed depth of two, under a pipeline with three steps in flight"
FIX = "the depth follows from the number of steps in flight"
THREADS = ("vllm#47644",)
KIND = "slot_reuse"
BACKENDS = RACES


def ops(rng: random.Random) -> list[Op]:
    """The pool is asked for three slots, and three steps are in flight."""
    return steps(pools("slot_mapping", depth=3), lambda number: publish("slot_mapping"), in_flight=3)


def buggy(device: torch.device) -> Any:
    from rig.targets import unfenced

    class UvaBufferPool(unfenced.UvaBufferPool):
        def __init__(self, size: unfenced.Size, dtype: torch.dtype, max_concurrency: int | None = None) -> None:
            super().__init__(size, dtype, 2)  # enough for the scheduler that it was written for

    return unfenced.module(device, UvaBufferPool)


def fixed(device: torch.device) -> Any:
    from rig.targets import unfenced

    return unfenced.module(device)
