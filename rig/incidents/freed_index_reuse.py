"""A pool index is freed when its step was scheduled, and the next one to ask gets it while the draft pass reads."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from rig.incidents._steps import RACES, pools, publish, steps
from rig.ops import Op

if TYPE_CHECKING:
    import torch

NUMBER = 8
SUMMARY = "a pool index is freed and written again while the draft pass reads it"
FIX = "the index that was freed first is the next one to be used"
THREADS = ("sglang#18803",)
KIND = "slot_reuse"
BACKENDS = RACES


def ops(rng: random.Random) -> list[Op]:
    """Each step needs one index; the draft pass reads on another stream."""
    return steps(pools("draft_state", depth=3), lambda number: publish("draft_state", stream="side"), in_flight=3)


def buggy(device: torch.device) -> Any:
    return _module(device, next_free=-1)  # the last freed first


def fixed(device: torch.device) -> Any:
    return _module(device, next_free=0)  # the first freed first


def _module(device: torch.device, *, next_free: int) -> Any:
    from rig.targets import unfenced

    class UvaBufferPool(unfenced.UvaBufferPool):
        def __init__(self, size: unfenced.Size, dtype: torch.dtype, max_concurrency: int | None = None) -> None:
            super().__init__(size, dtype, max_concurrency)
            self.free = list(range(1, len(self.slots)))

        def next_slot(self) -> int:
            self.free.append(self.current)
            return self.free.pop(next_free)

    return unfenced.module(device, UvaBufferPool)
