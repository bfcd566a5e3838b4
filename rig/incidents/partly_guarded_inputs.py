"""The reuse of input buffers is guarded, but not for all of them: the guarded region ends too early."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from rig.incidents._steps import RACES, ROWS, publish, steps
from rig.ops import Make, Op

if TYPE_CHECKING:
    import torch

NUMBER = 1
SUMMARY = "the guard of input buffers covers some tensors and leaves others out"
FIX = "every buffer that a step publishes is guarded alike"
THREADS = ("vllm#25279",)
KIND = "slot_reuse"
BACKENDS = RACES


def ops(rng: random.Random) -> list[Op]:
    """Token ids of 32 bits and positions of 64, both published every step."""
    dtypes = {"input_ids": "int32", "positions": "int64"}
    made = [Make(name=name, what="pool", size=ROWS, dtype=dtype, depth=2) for name, dtype in dtypes.items()]
    return steps(made, lambda number: [op for name in dtypes for op in publish(name)])


def buggy(device: torch.device) -> Any:
    import torch

    from rig.targets import unfenced

    class UvaBufferPool(unfenced.UvaBufferPool):
        def next_slot(self) -> int:
            guarded = self.dtype == torch.int32  # the positions, of 64 bits, were overlooked
            return super().next_slot() if guarded else self.current

    return unfenced.module(device, UvaBufferPool)


def fixed(device: torch.device) -> Any:
    from rig.targets import unfenced

    return unfenced.module(device)
