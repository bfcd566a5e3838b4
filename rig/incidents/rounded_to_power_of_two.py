"""Pinned memory is rounded up to powers of two, which may double what a host has to hold."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from rig.incidents._steps import ALL, pools, publish, steps
from rig.ops import Op

if TYPE_CHECKING:
    import torch

NUMBER = 19
SUMMARY = "slots rounded up to powers of two hold nearly twice what was asked for"
FIX = "slots have the size that was asked for, up to a page"
THREADS = ("vllm#56410", "sglang#37285")
KIND = "leak"
BACKENDS = ALL
WASTE_MAX = 0.1
_PAGE = 4096


def ops(rng: random.Random) -> list[Op]:
    """Not a matter of contents."""
    return steps(pools("table"), lambda number: publish("table"))


def check(module: Any, device: torch.device) -> str | None:
    """How much the slots hold beyond what was asked for.

    By their storages: what torch's allocator of pinned memory rounds besides is the same for both.
    """
    import torch

    asked = (1 << 20) + 4096
    pool = module.UvaBufferPool(asked // 4, torch.int32, 2)
    held = sum(slot.cpu.untyped_storage().nbytes() for slot in pool.slots)
    waste = held / (asked * len(pool.slots)) - 1
    return f"slots of {asked:,} bytes hold {waste:.0%} more than that" if waste > WASTE_MAX else None


def buggy(device: torch.device) -> Any:
    from rig.targets import unfenced

    class UvaBuffer(unfenced.UvaBuffer):
        def allocate(self, nbytes: int) -> torch.Tensor:
            return super().allocate(1 << (nbytes - 1).bit_length())[:nbytes]

    return unfenced.module(device, UvaBuffer)


def fixed(device: torch.device) -> Any:
    from rig.targets import unfenced

    class UvaBuffer(unfenced.UvaBuffer):
        def allocate(self, nbytes: int) -> torch.Tensor:
            return super().allocate(-(-nbytes // _PAGE) * _PAGE)[:nbytes]

    return unfenced.module(device, UvaBuffer)
