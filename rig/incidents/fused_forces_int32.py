"""The fused writer packs all values as 32-bit integers, whatever the tensors hold."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from rig.incidents._steps import ALL, steps
from rig.ops import FusedApply, Make, Op, Read, Stage

if TYPE_CHECKING:
    import torch

NUMBER = 16
SUMMARY = "float32 and int64 tensors through a fused writer that stores int32"
FIX = "each tensor's values are stored in its own type"
THREADS = ("upstream, seen on an H200",)
KIND = "lost_write"  # a small float becomes 0, and half of a 64-bit integer stays what it was
BACKENDS = ALL
BEYOND = "fused apply of other types than int32"
_DTYPES = {"ids": "int32", "scales": "float32", "hashes": "int64"}


def ops(rng: random.Random) -> list[Op]:
    """One apply over three tensors of different types."""
    made = [Make(name=name, what="staged", size=(4, 64), dtype=dtype, depth=2) for name, dtype in _DTYPES.items()]
    made.append(Make(name="writer", what="fused", depth=2, max_writes=16))

    def each(number: int) -> list[Op]:
        writes: list[Op] = [Stage(name=n, row=rng.randrange(4), start=rng.randrange(32), length=32) for n in _DTYPES]
        return [*writes, FusedApply(name="writer", tensors=tuple(_DTYPES)), *(Read(name=name) for name in _DTYPES)]

    return steps(made, each, num_steps=4)


def buggy(device: torch.device) -> Any:
    import torch

    from rig.targets import unfenced

    class FusedStagedWriter(unfenced.FusedStagedWriter):
        def apply(self, tensors: Any, output_ptrs: Any, output_strides: Any) -> None:
            for tensor in tensors:
                words = tensor.gpu.view(-1).view(torch.int32)  # whatever it holds
                for place, values in tensor.staged:
                    words[place : place + len(values)] = values.to(torch.int32).to(words.device)
                tensor.clear_staged_writes()

    return unfenced.module(device, FusedStagedWriter)


def fixed(device: torch.device) -> Any:
    from rig.targets import unfenced

    return unfenced.module(device)
