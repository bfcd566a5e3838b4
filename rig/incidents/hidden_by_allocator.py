"""Device memory is freed under a reader on another stream; an allocator that seldom reuses blocks hides it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from rig.incidents._steps import pools, steps
from rig.ops import CopyToGpu, Op, Read

if TYPE_CHECKING:
    import torch

NUMBER = 18
SUMMARY = "memory freed under a reader on another stream, which shows only if the allocator reuses it at once"
FIX = "what a reader may still need is kept for as many publishes as may be in flight"
THREADS = ("sglang#34076",)
KIND = "use_after_free"
BACKENDS = ("cuda_uva", "cuda_copy")
_NUM = 3 << 20  # words: 12 MiB, a size that the allocator has no other free block of
_FOREIGN, _BLOCKS = 0x5EED, 8
_ALLOCATORS = ("left alone", "reusing freed blocks at once")


def ops(rng: random.Random) -> list[Op]:
    """On one stream there is nothing wrong with either."""
    copied: list[Op] = [CopyToGpu(name="copied", num_rows=64), Read(name="copied")]
    return steps(pools("copied"), lambda number: copied)


def check(module: Any, device: torch.device) -> str | None:
    """A reader on a side stream, late, of a copy that only the pool keeps; the pool copies again before it runs."""
    wrong = {allocator: _num_foreign(module, device, allocator) for allocator in _ALLOCATORS}
    told = "; ".join(f"allocator {allocator}: {num:,} of {_NUM:,} words foreign" for allocator, num in wrong.items())
    return told if any(wrong.values()) else None


def _num_foreign(module: Any, device: torch.device, allocator: str) -> int:
    import torch

    from rig.device import seen_late

    pool = module.UvaBufferPool(_NUM, torch.int32, 2)
    words = torch.arange(_NUM, dtype=torch.int32)
    taken: list[torch.Tensor] = []

    def overtake() -> None:
        pool.copy_to_gpu(words)
        if allocator != "left alone":
            taken.extend(torch.full((_NUM,), _FOREIGN, dtype=torch.int32, device=device) for _ in range(_BLOCKS))

    seen = seen_late(device, lambda: pool.copy_to_gpu(words), overtake)
    return int((seen != words).sum())


def buggy(device: torch.device) -> Any:
    return _module(device, depth=1)  # kept until the next copy, whichever stream reads


def fixed(device: torch.device) -> Any:
    return _module(device, depth=None)  # as many are kept as may be in flight


def _module(device: torch.device, *, depth: int | None) -> Any:
    from rig.targets import unfenced

    class UvaBufferPool(unfenced.UvaBufferPool):
        copies: tuple[torch.Tensor, ...] = ()

        def copy_to_gpu(self, x: Any, out: torch.Tensor | None = None) -> torch.Tensor:
            copy = super().copy_to_gpu(x, out)
            self.copies = (*self.copies, copy)[-(depth or self.max_concurrency) :]
            return copy

    return unfenced.module(device, UvaBufferPool)
