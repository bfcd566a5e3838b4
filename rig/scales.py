"""What this process holds, to the byte: so that a stream which repeats itself shows what is never given back."""

from __future__ import annotations

import ctypes
import gc
from array import array
from functools import cache
from itertools import pairwise
from typing import Any

import torch

_SETTLING = 3  # cycles until caches, slots and tables have their size
_CYCLES_MIN = 4  # cycles compared after that
_WHAT = {  # what is weighed, and how much of it a cycle may add without being called a leak
    "bytes of host memory": 4096,
    "bytes of device and pinned memory": 0,
    "objects": 0,
}


class Scales:
    """Weighs after each cycle; `leak` says what grew in every cycle since things had settled."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._weights = [array("q") for _ in _WHAT]  # of numbers alone, which are no objects to be counted

    def weigh(self) -> None:
        """One cycle is over and nothing is queued."""
        on_device = 0
        if self._device.type == "cuda":
            from rig.device import held_nbytes

            on_device = held_nbytes(self._device)
        gc.collect()
        for weights, weight in zip(self._weights, (_malloced(), on_device, len(gc.get_objects())), strict=True):
            weights.append(weight)

    def leak(self) -> str | None:
        """What every one of the last cycles added to, or None."""
        num = len(self._weights[0]) - _SETTLING - 1
        if num < _CYCLES_MIN:
            return None
        told = []
        for (what, slack), weights in zip(_WHAT.items(), self._weights, strict=True):
            added = [after - before for before, after in pairwise(weights[_SETTLING:])]
            if min(added) > slack:
                told.append(f"{sum(added) // num:,} {what}")
        return f"{' and '.join(told)} were never given back, in each of {num} cycles" if told else None


class _Mallinfo(ctypes.Structure):
    _names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names)


@cache
def _mallinfo() -> Any:
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):  # no glibc of 2.33 or later
        return None
    function.restype = _Mallinfo
    return function


def _malloced() -> int:
    """Bytes that malloc has handed out and not got back; 0 where that cannot be told."""
    function = _mallinfo()
    if function is None:
        return 0
    info = function()
    return int(info.uordblks) + int(info.hblkhd)
