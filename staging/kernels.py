"""The Triton kernels. `staging.packing.scatter` is the numpy reference of `scatter`."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from staging.packing import CHUNK


@triton.jit
def load_ptr(pointers, element: tl.constexpr):
    """The pointer stored at `pointers` (uint64), to elements of the given type, aligned to 16 bytes."""
    address = tl.load(pointers)
    return tl.multiple_of(tl.cast(address, tl.pointer_type(element)), 16)


@triton.jit
def _move(source, address, length, element: tl.constexpr, chunk: tl.constexpr):
    lanes = tl.arange(0, chunk)
    inside = lanes < length
    values = tl.load(source.to(tl.pointer_type(element)) + lanes, mask=inside)
    tl.store(address.to(tl.pointer_type(element)) + lanes, values, mask=inside)


@triton.jit(do_not_specialize=["num_chunks"])
def _scatter(
    packed,  # uint8 [nbytes]: int64 [3, num_chunks], then the contents
    num_chunks,
    chunk: tl.constexpr,
):
    index = tl.program_id(0)
    header = packed.to(tl.pointer_type(tl.int64)) + index
    address = tl.load(header)
    source = packed + tl.load(header + num_chunks)
    extent = tl.load(header + 2 * num_chunks)
    length = extent >> 4
    itemsize = extent & 15
    if itemsize == 4:
        _move(source, address, length, tl.int32, chunk)
    elif itemsize == 8:
        _move(source, address, length, tl.int64, chunk)
    elif itemsize == 2:
        _move(source, address, length, tl.int16, chunk)
    else:
        _move(source, address, length, tl.int8, chunk)


def scatter(packed: torch.Tensor, num_chunks: int) -> None:
    """Queue the packed writes (see staging.packing) on the current stream of the current device."""
    launcher: Any = _scatter[(num_chunks,)]
    launcher(packed, num_chunks, CHUNK)
