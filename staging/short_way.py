"""`stage_write` and `stage_write_elem` for what engines stage most, plain numbers, in as few bytecodes as can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from staging.dtypes import carrier
from staging.write_log import STASH_NBYTES, WriteLog

_SMALL = (1 << 30) - 1
"""Python compares integers up to here fastest; larger ones are compared again."""
_PLAIN: dict[torch.dtype, tuple[Any, float, float]] = {
    torch.int32: (int, -(1 << 31), (1 << 31) - 1),
    torch.int64: (int, -(1 << 63), (1 << 63) - 1),
    torch.uint32: (int, 0, (1 << 32) - 1),
    torch.uint64: (int, 0, (1 << 64) - 1),
    torch.float32: (float, -3.4e38, 3.4e38),
    torch.float64: (float, -1.7e308, 1.7e308),
}

Stage = Callable[[Any, Any, Any], None]
StageElement = Callable[[Any, Any], None]


def short_ways(log: WriteLog, gate: list[Any], stage: Stage, stage_element: StageElement) -> tuple[Stage, StageElement]:
    """The two calls for a log. Everything else, and everything wrong, goes to `stage` and `stage_element`; so does
    every call while `gate` or `log.idle` is empty. Closures, since looking things up in an object would take longer
    than noting a number; for 1-D tensors the second only. One number at a time goes into `log.elements`, by one atomic
    operation, until a list of several comes: from then on, until the next apply, everything goes into the arrays.
    """
    if log.dtype not in _PLAIN or not log.shape[-1]:
        return stage, stage_element
    kind, low, high = _PLAIN[log.dtype]
    elements, offsets, idle, lengths = log.elements, log.offsets, log.idle, log.lengths
    take = log.contents.fromlist
    limit = STASH_NBYTES // log.itemsize if carrier(log.dtype).kind in "iu" else 0
    rows, width, pitch = log.shape[0], log.shape[-1], 1 if len(log.shape) == 1 else log.shape[1]

    def several(place: int, x: list[Any]) -> bool:
        idle.clear()
        try:
            take(x)  # all of it or nothing
            offsets.append(place)
            lengths.append(len(x))
        except (TypeError, OverflowError):
            return False
        finally:
            idle.append(None)
        return True

    def short(index: Any, start: Any, x: Any) -> None:
        if type(x) is list and idle and gate:
            try:
                if len(x) == 1 and not offsets:
                    if 0 <= index < rows and 0 <= start < width:
                        value = x[0]
                        place = index * pitch + start
                        if (
                            type(place) is int
                            and type(value) is kind
                            and (0 <= value <= _SMALL or low <= value <= high)
                        ):
                            elements[place] = value
                            return
                elif 0 < len(x) < limit and not elements and 0 <= index < rows and 0 <= start <= width - len(x):
                    place = index * pitch + start
                    if type(place) is int and several(place, x):
                        return
            except (TypeError, ValueError, RuntimeError):
                pass  # no place in the tensor: `stage` says what is wrong
        stage(index, start, x)

    def element(index: Any, x: Any) -> None:
        if type(index) is int and type(x) is kind and idle and gate and not offsets and 0 <= index < rows:
            value: Any = x
            if low <= value <= high:
                elements[index * pitch] = x
                return
        stage_element(index, x)

    return stage if len(log.shape) == 1 else short, element
