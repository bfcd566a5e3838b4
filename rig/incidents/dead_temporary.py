"""A temporary pinned tensor dies before the copy out of it has run, and its memory goes to somebody else."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from rig.incidents._steps import RACES, pools, publish, steps
from rig.ops import Op

if TYPE_CHECKING:
    import torch

NUMBER = 9
SUMMARY = "a temporary pinned tensor dies while what reads it is queued"
FIX = "a temporary is kept for as many publishes as may be in flight"
THREADS = ("pytorch#130785",)
KIND = "use_after_free"
BACKENDS = RACES


def ops(rng: random.Random) -> list[Op]:
    """Fresh memory for each publish, two steps in flight."""
    return steps(pools("temporary"), lambda number: publish("temporary"))


def buggy(device: torch.device) -> Any:
    return _module(device, depth=1)  # kept until the next publish


def fixed(device: torch.device) -> Any:
    return _module(device, depth=None)  # as many are kept as may be in flight


def _module(device: torch.device, *, depth: int | None) -> Any:
    import torch

    from rig.targets import unfenced

    class UvaBufferPool(unfenced.UvaBufferPool):
        def copy_to_uva(self, x: Any) -> torch.Tensor:
            x = torch.as_tensor(x, dtype=self.dtype)
            self.slots = [*self.slots, self.larger(len(x))][-(depth or self.max_concurrency) :]
            return self.filled(self.slots[-1], x)

    return unfenced.module(device, UvaBufferPool)
