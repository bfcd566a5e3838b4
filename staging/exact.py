"""Exact conversion on the host: one table for Python scalars, numpy arrays and tensors.

| from \\ to | bool | int | float |
|---|---|---|---|
| bool | as is | 0, 1 | 0.0, 1.0 |
| int | only 0 and 1 | only in range | only if exact |
| float | TypeError | TypeError | to nearest even; finite to inf raises |

A value that does not fit raises OverflowError, a kind that does not fit TypeError; both name the value.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any, cast

import numpy as np
import torch

from staging.dtypes import CARRIERS, carrier

Array = np.ndarray[Any, np.dtype[Any]]

_CODES = {  # of array.array, which takes exactly the integers that fit
    torch.int8: "b", torch.uint8: "B", torch.int16: "h", torch.uint16: "H",
    torch.int32: "i", torch.uint32: "I", torch.int64: "q", torch.uint64: "Q",
}  # fmt: skip
_NATURAL = {torch.int32: "I", torch.int64: "Q"}
_WORDS: dict[str, np.dtype[Any]] = {"I": np.dtype(np.int32), "Q": np.dtype(np.int64)}
_INT64 = range(-(2**63), 2**63)
_MANTISSA_BITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}


def exact(values: Any, dtype: torch.dtype) -> Array:
    """`values` as a C-contiguous array of `carrier(dtype)` that holds the same numbers.

    Takes a tensor on the CPU, an ndarray, a sequence, a scalar, or any iterable. The result may share
    memory with `values` where nothing had to be converted. For bfloat16 it holds the bits as uint16.
    Raises TypeError, OverflowError (see the module) or ValueError (ragged nesting, device tensors).
    """
    if values.__class__ is np.ndarray and values.dtype == CARRIERS.get(dtype) and dtype != torch.bfloat16:
        ready: Array = values
        return np.asarray(ready, order="C")
    if values.__class__ is list and dtype in _CODES:
        try:
            return _from_list(values, dtype)
        except (TypeError, OverflowError, ValueError):
            pass  # not all plain integers in range: take the long way, which says what is wrong
    carrier(dtype)  # raises where it is not served
    if isinstance(values, torch.Tensor):
        if values.device.type != "cpu":
            raise ValueError(f"values lie on {values.device}; stage from host memory (call .cpu() first)")
        if values.layout != torch.strided:
            raise ValueError(f"values are a tensor of layout {values.layout}; call .to_dense() first")
        if values.dtype not in CARRIERS:
            raise TypeError(f"values of type {values.dtype} cannot become {_name(dtype)}")
        if values.dtype == dtype:
            return _tensor_bits(values)
        source = _tensor_bits(values.float() if values.dtype == torch.bfloat16 else values)
    elif isinstance(values, np.ndarray):
        source = values
    else:
        source = _from_python(values, dtype)
    if source.size == 0:
        return np.empty(source.shape, carrier(dtype))
    return np.asarray(_convert(source, dtype), order="C")


def naturals(values: list[Any], code: str = "Q") -> Array:
    """A list of integers >= 0 as int64 ("Q") or int32 ("I") of the same bits; raises OverflowError or TypeError."""
    taken = array(code)
    taken.fromlist(values)
    return np.frombuffer(taken, _WORDS[code]) if values else np.empty(0, _WORDS[code])


def _from_list(values: list[Any], dtype: torch.dtype) -> Array:
    """A list of integers without boxing. Unsigned words are read several times faster than signed ones, and natural
    numbers are what engines send; raises TypeError, OverflowError or ValueError for whatever is no integer in range."""
    if dtype in _NATURAL:
        try:
            signed = naturals(values, _NATURAL[dtype])
        except OverflowError:
            pass  # some are negative
        else:
            if not len(signed) or np.minimum.reduce(signed) >= 0:
                return signed
    taken = array(_CODES[dtype])
    taken.fromlist(values)
    return np.array(taken, copy=False)


def _tensor_bits(tensor: torch.Tensor) -> Array:
    tensor = tensor.detach().resolve_neg().contiguous()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.uint16)
    bits: Array = tensor.numpy()
    return bits


def _from_python(values: Any, dtype: torch.dtype) -> Array:
    if isinstance(values, Iterable) and not isinstance(values, (list, tuple, range, str, bytes)):
        try:
            memoryview(cast(Any, values))  # array.array and other buffers convert without boxing
        except TypeError:
            values = values if hasattr(values, "__array__") else list(values)
    if isinstance(values, range) and len(values) and max(values[0], values[-1], key=abs) not in _INT64:
        values = list(values)
    try:
        given: Array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"values are ragged or nested unevenly: {error}") from None
    if given.dtype.kind == "f" and isinstance(values, (list, tuple)) and given.size:
        fine = dtype.is_floating_point and bool((np.abs(given, dtype=np.float64) < 2.0 ** _MANTISSA_BITS[dtype]).all())
        if not fine:  # numpy makes floats of integers beside floats, or around 2**64: judge them as they were
            return np.asarray(values, dtype=object)
    return given


def _convert(source: Array, dtype: torch.dtype) -> Array:
    kind, target = source.dtype.kind, carrier(dtype)
    if kind == "O":
        return _from_objects(source, dtype)
    if kind not in "biuf":
        raise TypeError(f"values of type {source.dtype} cannot become {_name(dtype)}")
    if kind == "f":
        return _from_float(source, dtype)
    if source.dtype == target and dtype != torch.bfloat16:
        return source
    if kind == "b":
        source = source.astype(np.uint8)
    if dtype == torch.bool:
        return _in_range(source, 0, 1, dtype).astype(target)
    if dtype.is_floating_point:
        return _int_to_float(source, dtype)
    limits = np.iinfo(target)
    return _in_range(source, int(limits.min), int(limits.max), dtype).astype(target, copy=False)


def _from_objects(source: Array, dtype: torch.dtype) -> Array:
    """Python numbers one by one, each by the table: mixed kinds, or integers beyond 64 bits."""
    numbers = [value.item() if isinstance(value, (np.generic, torch.Tensor)) else value for value in source.flat]
    for value in numbers:
        if not isinstance(value, (int, float)):
            raise TypeError(f"{value!r} of type {type(value).__name__} cannot become {_name(dtype)}")
        if isinstance(value, float) and not dtype.is_floating_point:
            raise TypeError(f"{value!r} is a float and cannot become {_name(dtype)}; convert it before staging")
    if not dtype.is_floating_point:
        limits = None if dtype == torch.bool else np.iinfo(carrier(dtype))
        low, high = (0, 1) if limits is None else (int(limits.min), int(limits.max))
        return _in_range(np.array(numbers, dtype=object), low, high, dtype).astype(carrier(dtype)).reshape(source.shape)
    largest = torch.finfo(dtype).max
    for value in numbers:
        if isinstance(value, int) and value:
            lossy = (abs(value) // (value & -value)).bit_length() > _MANTISSA_BITS[dtype]
            if lossy or abs(value) > largest:
                raise OverflowError(f"{value} has no exact {_name(dtype)}; round it before staging")
    return _from_float(np.array(numbers, dtype=np.float64), dtype).reshape(source.shape)


def _in_range(source: Array, low: int, high: int, dtype: torch.dtype) -> Array:
    smallest, largest = int(source.min()), int(source.max())
    if smallest < low or largest > high:
        value = smallest if smallest < low else largest
        raise OverflowError(f"{value} does not fit {_name(dtype)}: the range is {low} to {high}")
    return source


def _int_to_float(source: Array, dtype: torch.dtype) -> Array:
    shape, source = source.shape, np.atleast_1d(source)
    magnitude = np.where(source < 0, 0 - source.astype(np.uint64), source.astype(np.uint64))
    lowest_bit = magnitude & (0 - magnitude)
    significand = magnitude // np.maximum(lowest_bit, np.uint64(1))
    lossy = significand >> np.uint64(_MANTISSA_BITS[dtype]) != 0
    if dtype == torch.float16:
        lossy |= magnitude > 65504
    if lossy.any():
        raise OverflowError(f"{source[lossy].flat[0]} has no exact {_name(dtype)}; round it before staging")
    if dtype == torch.bfloat16:
        return _bfloat16_bits(source.astype(np.float32)).reshape(shape)
    return source.astype(carrier(dtype)).reshape(shape)


def _from_float(source: Array, dtype: torch.dtype) -> Array:
    if not dtype.is_floating_point:
        raise TypeError(f"{source.flat[0]!r} is a float and cannot become {_name(dtype)}; convert it before staging")
    if source.dtype.itemsize > 8:
        raise TypeError(f"values of type {source.dtype} are wider than float64; convert them before staging")
    if dtype == torch.bfloat16:
        bits = _bfloat16_bits(source)
        overflowed = ((bits & 0x7FFF) == 0x7F80) & np.isfinite(source)
        result = bits
    else:
        with np.errstate(over="ignore", under="ignore"):
            result = source.astype(carrier(dtype), copy=False)
        if result.dtype.itemsize >= source.dtype.itemsize:
            return result
        overflowed = np.isinf(result) & np.isfinite(source)
    if overflowed.any():
        raise OverflowError(f"{source[overflowed].flat[0]!r} does not fit {_name(dtype)}: it would become infinite")
    return result


def _bfloat16_bits(source: Array) -> Array:
    """The nearest bfloat16, ties to even, as uint16 bits; a NaN keeps sign and the top of its payload."""
    with np.errstate(over="ignore", under="ignore"):
        single = source.astype(np.float32)
    bits = single.view(np.uint32)
    if source.dtype.itemsize > 4:  # float64 was rounded once: a tie that is none must lean to the true side
        tie = (bits & np.uint32(0xFFFF)) == 0x8000
        true, near = np.abs(source), np.abs(single.astype(np.float64))
        bits = bits + (tie & (true > near)).astype(np.uint32) - (tie & (true < near)).astype(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(single), quiet, rounded).astype(np.uint16)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
