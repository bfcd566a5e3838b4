"""Pinned memory is allocated in every step, each time under the driver's lock."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from rig.incidents._steps import pools, publish, steps
from rig.ops import Op

if TYPE_CHECKING:
    import torch

NUMBER = 20
SUMMARY = "a pinned allocation in every step, counted rather than timed"
FIX = "slots are allocated once"
THREADS = ("vllm#37006",)
KIND = "latency"
BACKENDS = ("cuda_uva",)
_NUM_STEPS, _NUM_MAX = 32, 2


def ops(rng: random.Random) -> list[Op]:
    """Not a matter of contents."""
    return steps(pools("table"), lambda number: publish("table"))


def check(module: Any, device: torch.device) -> str | None:
    """How often torch is asked for pinned memory once a pool has its slots."""
    import torch

    from rig.device import num_pinned_allocations

    pool = module.UvaBufferPool(1 << 20, torch.int32, 2)
    words = torch.zeros(1 << 20, dtype=torch.int32)
    for _ in range(2):
        pool.copy_to_uva(words)
    before = num_pinned_allocations()
    kept = [pool.copy_to_uva(words) for _ in range(_NUM_STEPS)]  # an engine holds what is in flight
    num = num_pinned_allocations() - before
    del kept
    return f"{_NUM_STEPS} publishes made {num} allocations of pinned memory" if num > _NUM_MAX else None


def buggy(device: torch.device) -> Any:
    import torch

    from rig.targets import unfenced

    class UvaBufferPool(unfenced.UvaBufferPool):
        def copy_to_uva(self, x: Any) -> torch.Tensor:
            x = torch.as_tensor(x, dtype=self.dtype)
            self.current = self.next_slot()
            self.slots[self.current] = self.larger(len(x))  # right, since the slot's own readers are done
            return self.filled(self.slots[self.current], x)

    return unfenced.module(device, UvaBufferPool)


def fixed(device: torch.device) -> Any:
    from rig.targets import unfenced

    return unfenced.module(device)
