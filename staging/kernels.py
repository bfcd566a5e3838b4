"""The Triton kernels. `packing.scatter` and `elements.scatter_elements` are their numpy references."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from staging.elements import HEADER
from staging.packing import CHUNK

_HEADER = tl.constexpr(HEADER)


@triton.jit
def load_ptr(pointers, element: tl.constexpr):
    """The pointer stored at `pointers` (uint64), to elements of the given type, aligned to 16 bytes."""
    address = tl.load(pointers)
    return tl.multiple_of(tl.cast(address, tl.pointer_type(element)), 16)


@triton.jit
def _move(source, address, first, length, step, element: tl.constexpr, chunk: tl.constexpr):
    source = source.to(tl.pointer_type(element))
    address = address.to(tl.pointer_type(element))
    for start in range(first, length, step):
        lanes = start + tl.arange(0, chunk)
        inside = lanes < length
        tl.store(address + lanes, tl.load(source + lanes, mask=inside), mask=inside)


@triton.jit(do_not_specialize=["num_runs"])
def _scatter(
    header,  # int64 [3, num_runs]: destination address, source address, 16 * elements + element size
    num_runs,
    chunk: tl.constexpr,
):
    mine = header + tl.program_id(0)
    address = tl.load(mine)
    source = tl.load(mine + num_runs)
    extent = tl.load(mine + 2 * num_runs)
    length = extent >> 4
    itemsize = extent & 15
    first = tl.program_id(1).to(tl.int64) * chunk
    step = tl.num_programs(1).to(tl.int64) * chunk
    if itemsize == 4:
        _move(source, address, first, length, step, tl.int32, chunk)
    elif itemsize == 8:
        _move(source, address, first, length, step, tl.int64, chunk)
    elif itemsize == 2:
        _move(source, address, first, length, step, tl.int16, chunk)
    else:
        _move(source, address, first, length, step, tl.int8, chunk)


@triton.jit
def _put(values, index, addresses, inside, element: tl.constexpr):
    bits = tl.load(values.to(tl.pointer_type(element)) + index, mask=inside)
    tl.store(addresses.to(tl.pointer_type(element)), bits, mask=inside)


@triton.jit(do_not_specialize=["num_programs"])
def _scatter_elements(
    packed,  # int64: see staging.elements
    num_programs,
    chunk: tl.constexpr,
):
    num = tl.load(packed)
    num_targets = tl.load(packed + 1)
    span = tl.load(packed + 2)
    width = tl.load(packed + 3)
    itemsize = tl.load(packed + 4)
    word = tl.load(packed + 5)
    value = tl.load(packed + 6)
    keys = packed + _HEADER + 2 * num_targets
    values = keys + num
    for first in range(tl.program_id(0) * chunk, num, num_programs * chunk):
        index = first + tl.arange(0, chunk)
        inside = index < num
        key = tl.load(keys + index, mask=inside, other=0)
        row = key // width
        target = row // span
        place = packed + _HEADER + 2 * target
        address = tl.load(place, mask=inside) + (row - target * span) * tl.load(place + 1, mask=inside)
        address += (key - row * width) * itemsize
        if itemsize == 4:
            _put(values, index, address, inside, tl.int32)
        elif itemsize == 8:
            _put(values, index, address, inside, tl.int64)
        elif itemsize == 2:
            _put(values, index, address, inside, tl.int16)
        else:
            _put(values, index, address, inside, tl.int8)
    if word != 0:  # a launch of one program, whose reads are over when all of its threads get here
        tl.debug_barrier()
        tl.atomic_xchg(word.to(tl.pointer_type(tl.int64)), value, sem="release", scope="sys")


def scatter(header: torch.Tensor, num_runs: int, num_programs: int = 1) -> Any:
    """Queue the runs of a header (see staging.packing) on the current stream of the current device, with that many
    programs for each; returns Triton's compiled kernel, of which the handle can be launched directly."""
    launcher: Any = _scatter[(num_runs, num_programs)]
    return launcher(header, num_runs, CHUNK)


def scatter_elements(packed: torch.Tensor, num_programs: int) -> Any:
    """Queue packed elements (int64; see staging.elements) likewise."""
    launcher: Any = _scatter_elements[(num_programs,)]
    return launcher(packed, num_programs, CHUNK)
