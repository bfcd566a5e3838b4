"""The device reads the engine's host arrays themselves, and the next step is written while it still does."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from rig.incidents._steps import RACES, ROWS, steps
from rig.ops import Make, Op, PublishBacked, Read, WriteBacked

if TYPE_CHECKING:
    import torch

NUMBER = 1
SUMMARY = "host input buffers written for the next step while the device still reads them"
FIX = "each step's inputs are copied to a slot of their own"
THREADS = ("vllm#24527",)
KIND = "slot_reuse"
BACKENDS = RACES


def ops(rng: random.Random) -> list[Op]:
    """Two inputs, partly rewritten every step, with two steps in flight."""
    made = [Make(name=name, what="backed", size=ROWS, depth=2) for name in ("input_ids", "positions")]

    def each(number: int) -> list[Op]:
        listed: list[Op] = []
        for make in made:
            row = rng.randrange(ROWS // 2)
            listed += [WriteBacked(name=make.name, row=row, num_rows=ROWS - row)]
            listed += [PublishBacked(name=make.name), Read(name=make.name)]
        return listed

    return steps(made, each)


def buggy(device: torch.device) -> Any:
    from rig.targets import unfenced

    class UvaBackedTensor(unfenced.UvaBackedTensor):
        def __init__(self, size: unfenced.Size, dtype: torch.dtype, max_concurrency: int | None = None) -> None:
            self._shared = self.names.UvaBuffer(size, dtype)
            self.cpu = self._shared.cpu
            self.gpu = self._shared.uva()

        def copy_to_uva(self, n: int | None = None) -> torch.Tensor:
            self.gpu = self._shared.uva(n)  # nothing is copied: the device looks at the host's array
            return self.gpu

    return unfenced.module(device, UvaBackedTensor)


def fixed(device: torch.device) -> Any:
    from rig.targets import unfenced

    return unfenced.module(device)
