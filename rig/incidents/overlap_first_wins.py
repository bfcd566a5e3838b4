"""Two writes of one apply overlap, and the first one wins."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from rig.incidents._steps import ALL, steps
from rig.ops import Apply, Make, Op, Read, Stage

if TYPE_CHECKING:
    import torch

NUMBER = 15
SUMMARY = "of two writes that overlap in one apply, the first one wins"
FIX = "writes take effect in the order in which they were staged"
THREADS = ("upstream, seen on an H200",)
KIND = "wrong_winner"
BACKENDS = ALL
BEYOND = "writes that overlap within an apply"
_ROWS, _COLS = 4, 64


def ops(rng: random.Random) -> list[Op]:
    """Two writes to one row, the second over a part of the first."""

    def each(number: int) -> list[Op]:
        row = rng.randrange(_ROWS)
        writes: list[Op] = [
            Stage(name="table", row=row, start=0, length=_COLS),
            Stage(name="table", row=row, start=rng.randrange(_COLS // 2), length=_COLS // 2, beyond="overlap"),
        ]
        return [*writes, Apply(name="table"), Read(name="table")]

    return steps([Make(name="table", what="staged", size=(_ROWS, _COLS), depth=2)], each, num_steps=4)


def buggy(device: torch.device) -> Any:
    from rig.targets import unfenced

    class StagedWriteTensor(unfenced.StagedWriteTensor):
        def apply_write(self) -> None:
            self.staged.reverse()  # as when the thread that wrote first happens to come last
            super().apply_write()

    return unfenced.module(device, StagedWriteTensor)


def fixed(device: torch.device) -> Any:
    from rig.targets import unfenced

    return unfenced.module(device)
