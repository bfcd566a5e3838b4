"""Block offsets go to the device through one pinned buffer, which the next step rewrites while the copy is queued."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from rig.incidents._steps import RACES, ROWS, pools, publish, steps
from rig.ops import CopyToGpu, Op, Read

if TYPE_CHECKING:
    import torch

NUMBER = 7
SUMMARY = "block offsets in one pinned buffer, rewritten while the copy out of it is queued"
FIX = "each copy that may be queued has a pinned source of its own"
THREADS = ("TensorRT-LLM#15546",)
KIND = "slot_reuse"
BACKENDS = RACES


def ops(rng: random.Random) -> list[Op]:
    """On a GPU the copies themselves are queued; on sim, where a foreign copy runs at once, the late reader is one."""

    def each(number: int) -> list[Op]:
        copied: list[Op] = [CopyToGpu(name="copied_offsets", num_rows=ROWS, out=True), Read(name="copied_offsets")]
        return [*publish("block_offsets"), *copied]

    return steps(pools("block_offsets", "copied_offsets"), each)


def buggy(device: torch.device) -> Any:
    from rig.targets import unfenced

    class UvaBufferPool(unfenced.UvaBufferPool):
        def next_slot(self) -> int:
            return self.current  # the one staging buffer; nobody asks whether its last copy is done

    return unfenced.module(device, UvaBufferPool)


def fixed(device: torch.device) -> Any:
    from rig.targets import unfenced

    return unfenced.module(device)
