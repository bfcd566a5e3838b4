"""`stage_write` and `stage_write_elem` for what engines stage most, one plain number, in a few bytecodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from staging.write_log import WriteLog

_SMALL = (1 << 30) - 1  # Python compares integers up to here fastest
_PLAIN: dict[torch.dtype, tuple[Any, float, float]] = {
    torch.int32: (int, -_SMALL, _SMALL),
    torch.int64: (int, -_SMALL, _SMALL),
    torch.uint32: (int, 0, _SMALL),
    torch.uint64: (int, 0, _SMALL),
    torch.float32: (float, -3.4e38, 3.4e38),
    torch.float64: (float, -1.7e308, 1.7e308),
}

Stage = Callable[[Any, Any, Any], None]
StageElement = Callable[[Any, Any], None]


def short_ways(log: WriteLog, gate: list[Any], stage: Stage, stage_element: StageElement) -> tuple[Stage, StageElement]:
    """The two calls for a log. Everything else, and everything wrong, goes to `stage` and `stage_element`; so does
    every call while `gate` or `log.idle` is empty. Closures, since looking things up in an object would take longer
    than noting a value; each notes it in one atomic operation, so threads cannot tear a write.
    """
    if log.dtype not in _PLAIN or not log.shape[-1]:
        return stage, stage_element
    kind, low, high = _PLAIN[log.dtype]
    elements, idle, rows, columns = log.elements, log.idle, log.shape[0], log.shape[-1]

    def in_rows(index: Any, start: Any, x: Any) -> None:
        if type(x) is list and type(index) is int and type(start) is int and idle and gate and len(x) == 1:
            value = x[0]
            if type(value) is kind and low <= value <= high and 0 <= index < rows and 0 <= start < columns:
                elements[index * columns + start] = value
                return
        stage(index, start, x)

    def in_flat(index: Any, start: Any, x: Any) -> None:
        if type(x) is list and type(index) is int and type(start) is int and idle and gate and len(x) == 1:
            value = x[0]
            if type(value) is kind and low <= value <= high and index >= 0 <= start and index + start < rows:
                elements[index + start] = value
                return
        stage(index, start, x)

    pitch = 1 if len(log.shape) == 1 else columns

    def element(index: Any, x: Any) -> None:
        if type(index) is int and type(x) is kind and idle and gate and low <= x <= high and 0 <= index < rows:
            elements[index * pitch] = x
            return
        stage_element(index, x)

    return in_flat if len(log.shape) == 1 else in_rows, element
