"""The offset of a row is computed in too few bits, and a write to a far row lands in another one."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from rig.incidents._steps import ALL, steps
from rig.ops import Apply, Make, Op, Read, Stage

if TYPE_CHECKING:
    import torch

NUMBER = 13
SUMMARY = "row x stride overflows: 32 bits on a GPU, 16 on a CPU so that a small table shows it"
FIX = "offsets have 64 bits"
THREADS = ("vllm#57030",)
KIND = "spill"
BACKENDS = ALL
_SIZE = {16: (72, 1 << 10), 32: (2056, 1 << 20)}  # rows x columns: a little over half of what the bits can say
_FREE_NBYTES = 12 << 30


def skip_reason(device: torch.device) -> str | None:
    """Without room for the large table there is nothing to see."""
    if device.type != "cuda":
        return None
    from rig.device import free_nbytes

    free = free_nbytes(device)
    return None if free >= _FREE_NBYTES else f"needs {_FREE_NBYTES:,} bytes of device memory, {free:,} are free"


def ops(rng: random.Random) -> list[Op]:
    return _ops(rng, 16)


def ops_on_gpu(rng: random.Random) -> list[Op]:
    return _ops(rng, 32)


def _ops(rng: random.Random, bits: int) -> list[Op]:
    """Write rows on both sides of the limit; read them, and the rows where the far ones would land."""
    rows, cols = _SIZE[bits]
    limit, wraps = ((1 << bits - shift) // cols for shift in (1, 0))  # rows from where the offset is negative, and not
    made = [Make(name="table", what="staged", size=_SIZE[bits], depth=2)]

    def each(number: int) -> list[Op]:
        far, near = rng.randrange(limit, min(rows, wraps)), rng.randrange(limit)
        landed = far - wraps + rows
        start = rng.randrange(cols - 16)
        writes: list[Op] = [Stage(name="table", row=row, start=start, length=16) for row in (near, far)]
        reads: list[Op] = [Read(name="table", first=row, num_rows=1) for row in sorted({near, far, landed})]
        return [*writes, Apply(name="table"), *reads]

    return steps(made, each, num_steps=4)


def buggy(device: torch.device) -> Any:
    from rig.targets import unfenced

    half = 1 << (31 if device.type == "cuda" else 15)

    class StagedWriteTensor(unfenced.StagedWriteTensor):
        def place(self, index: int, start: int) -> int:
            return (super().place(index, start) + half) % (2 * half) - half  # what a signed integer keeps of it

    return unfenced.module(device, StagedWriteTensor)


def fixed(device: torch.device) -> Any:
    from rig.targets import unfenced

    return unfenced.module(device)
