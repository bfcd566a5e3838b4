"""Fills pinned memory that a target freed too early, so that a reader which still needs it sees a known word."""

from __future__ import annotations

import numpy as np
import torch

from rig.trace import POISON

_BLOCKS = 3  # pinned blocks of one size that are poisoned together; the allocator hands out the last freed first
_SIZES_MAX = 4  # sizes of pinned memory that are poisoned after a publish
_NBYTES_MAX = 1 << 22  # of one size; larger slots are left to the contents' own words


class Poison:
    """Fills pinned memory that was freed too early: the allocator hands such blocks to whoever asks for that size."""

    def __init__(self) -> None:
        self._sizes: dict[int, None] = {}
        self._due = False

    def note(self, tensor: torch.Tensor) -> None:
        """Memory of this size was handed out."""
        nbytes = tensor.untyped_storage().nbytes()
        if 0 < nbytes <= _NBYTES_MAX:
            self._sizes.pop(nbytes, None)
            self._sizes[nbytes] = None
            while len(self._sizes) > _SIZES_MAX:
                del self._sizes[next(iter(self._sizes))]
        self._due = True

    def spread(self) -> None:
        """Poison what may have been freed since."""
        if not self._due:
            return
        self._due = False
        for nbytes in self._sizes:
            blocks = [torch.empty(nbytes, dtype=torch.uint8, pin_memory=True) for _ in range(_BLOCKS)]
            for block in blocks:
                words = block[: nbytes // 4 * 4].numpy().view(np.uint32)
                words.fill(POISON)
