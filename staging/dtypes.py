"""Which dtypes the library moves, and the numpy dtype that carries each one's bits on the host."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

CARRIERS: dict[torch.dtype, np.dtype] = {
    torch.bool: np.dtype(np.bool_),
    torch.int8: np.dtype(np.int8),
    torch.uint8: np.dtype(np.uint8),
    torch.int16: np.dtype(np.int16),
    torch.uint16: np.dtype(np.uint16),
    torch.int32: np.dtype(np.int32),
    torch.uint32: np.dtype(np.uint32),
    torch.int64: np.dtype(np.int64),
    torch.uint64: np.dtype(np.uint64),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(np.uint16),  # numpy has no bfloat16: its bits travel as uint16
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
}

_NBYTES_MAX = 2**63 - 1


def carrier(dtype: torch.dtype) -> np.dtype:
    """The numpy dtype of the same width that carries `dtype`; raises TypeError for a dtype not served."""
    try:
        return CARRIERS[dtype]
    except (KeyError, TypeError):
        served = ", ".join(str(known).removeprefix("torch.") for known in CARRIERS)
        raise TypeError(f"dtype {dtype!r} is not served; choose one of: {served}") from None


def shape_of(size: int | Sequence[int], *, rank_max: int | None = None) -> tuple[int, ...]:
    """`size` as a shape; raises ValueError for a negative extent, no extent, or a rank over `rank_max`."""
    try:
        shape = tuple(map(operator.index, size)) if isinstance(size, Sequence) else (operator.index(size),)
    except TypeError:
        raise TypeError(f"size={size!r}: give a count of rows or a shape of integers") from None
    if not shape or any(extent < 0 for extent in shape):
        raise ValueError(f"size={size!r}: give a count of rows or a shape of extents >= 0")
    if rank_max is not None and len(shape) > rank_max:
        raise ValueError(f"size={size!r} has rank {len(shape)}; the limit is {rank_max}: (rows,) or (rows, columns)")
    return shape


def nbytes_of(shape: Sequence[int], dtype: torch.dtype) -> int:
    """Bytes of a dense tensor; raises OverflowError where no machine could address them."""
    nbytes = math.prod(shape) * carrier(dtype).itemsize
    if nbytes > _NBYTES_MAX:
        raise OverflowError(f"{tuple(shape)} of {dtype} takes {nbytes} bytes; the limit of a tensor is {_NBYTES_MAX}")
    return nbytes


def check_out(out: object, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    """Raise TypeError or ValueError unless a copy of that form can be queued into `out`."""
    if not isinstance(out, torch.Tensor):
        raise TypeError(f"out is a {type(out).__name__}; give a tensor on {device}, or None for a new one")
    if out.shape != shape or out.dtype != dtype or out.device != device:
        raise ValueError(
            f"out is {tuple(out.shape)} {out.dtype} on {out.device}; the values need {tuple(shape)} {dtype} on {device}"
        )
    if any(step == 0 and extent > 1 for step, extent in zip(out.stride(), shape, strict=True)):
        raise ValueError(f"out has strides {out.stride()}: its elements share memory; give one that is not expanded")
    if out.requires_grad and torch.is_grad_enabled():
        raise ValueError("out requires grad; pass out.detach()")


def whole(value: Any, name: str) -> int:
    """`value` by operator.index; the TypeError names the argument."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r} of type {type(value).__name__}: give an integer") from None
