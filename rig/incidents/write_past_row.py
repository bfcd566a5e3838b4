"""A staged write that is longer than its row changes the row below."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from rig.incidents._steps import ALL, steps
from rig.ops import Apply, Make, Op, Read, Stage

if TYPE_CHECKING:
    import torch

NUMBER = 14
SUMMARY = "a write longer than its row changes the neighbour row"
FIX = "the call that stages it raises, and nothing is staged"
THREADS = ("vllm#53982",)
KIND = "spill"
BACKENDS = ALL
_ROWS, _COLS = 4, 32


def ops(rng: random.Random) -> list[Op]:
    """A good write, and one that starts within a row and ends in the next."""

    def each(number: int) -> list[Op]:
        good, bad = rng.sample(range(_ROWS - 1), 2)
        start = rng.randrange(_COLS // 2, _COLS)
        return [
            Stage(name="table", row=good, start=0, length=_COLS // 2),
            Stage(name="table", row=bad, start=start, length=_COLS, beyond="bounds"),
            Apply(name="table"),
            Read(name="table"),
        ]

    return steps([Make(name="table", what="staged", size=(_ROWS, _COLS), depth=2)], each, num_steps=4)


def buggy(device: torch.device) -> Any:
    from rig.targets import unfenced

    class StagedWriteTensor(unfenced.StagedWriteTensor):
        def check(self, index: int, start: int, length: int) -> None:
            """Whoever calls is trusted."""

    return unfenced.module(device, StagedWriteTensor)


def fixed(device: torch.device) -> Any:
    from rig.targets import unfenced

    return unfenced.module(device)
