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
    header,  # int64 [3, num_chunks]: destination address, source address, 16 * elements + element size
    num_chunks,
    chunk: tl.constexpr,
):
    mine = header + tl.program_id(0)
    address = tl.load(mine)
    source = tl.load(mine + num_chunks)
    extent = tl.load(mine + 2 * num_chunks)
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


def scatter(header: torch.Tensor, num_chunks: int) -> Any:
    """Queue the writes of a header (see staging.packing) on the current stream of the current device; returns
    Triton's compiled kernel, of which the handle can be launched directly."""
    launcher: Any = _scatter[(num_chunks,)]
    return launcher(header, num_chunks, CHUNK)
