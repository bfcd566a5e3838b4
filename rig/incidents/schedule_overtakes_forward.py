"""The schedule stream writes the next step's state over what the forward stream still reads."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from rig.incidents._steps import RACES, pools, publish, steps
from rig.ops import Op

if TYPE_CHECKING:
    import torch

NUMBER = 8
SUMMARY = "the schedule stream writes what the forward stream still reads"
FIX = "a step's state stays as it was until its forward pass is done"
THREADS = ("sglang#26380",)
KIND = "slot_reuse"
BACKENDS = RACES


def ops(rng: random.Random) -> list[Op]:
    """Published on the schedule stream; the readers run on another one."""

    def each(number: int) -> list[Op]:
        return [op for name in ("seq_lens", "req_to_token") for op in publish(name, stream="side")]

    return steps(pools("seq_lens", "req_to_token"), each)


def buggy(device: torch.device) -> Any:
    from rig.targets import unfenced

    class UvaBufferPool(unfenced.UvaBufferPool):
        def next_slot(self) -> int:
            return self.current  # in order on the schedule stream, which says nothing of the forward stream

    return unfenced.module(device, UvaBufferPool)


def fixed(device: torch.device) -> Any:
    from rig.targets import unfenced

    return unfenced.module(device)
