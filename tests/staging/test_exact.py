"""The conversion table: exact where it promises, refused with the value and the limit where it cannot be."""

from __future__ import annotations

import array
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from staging.dtypes import CARRIERS
from staging.exact import exact

INTS = [torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
WAYS = {
    "list": lambda array: array.tolist(),
    "tuple": lambda array: tuple(array.tolist()),
    "ndarray": lambda array: array,
    "tensor": lambda array: torch.from_numpy(array.copy()),
    "generator": lambda array: (value for value in array.tolist()),
    "dict view": lambda array: dict(enumerate(array.tolist())).values(),
    "strided": lambda array: np.repeat(array, 2)[::2],
    "reversed bytes": lambda array: array.astype(array.dtype.newbyteorder()),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_every_way_of_passing_integers_keeps_their_extremes(dtype, way):
    limits = np.iinfo(CARRIERS[dtype])
    values = np.array([limits.min, 0, 1, limits.max], CARRIERS[dtype])
    result = exact(WAYS[way](values), dtype)
    assert result.dtype == CARRIERS[dtype]
    assert (result == values).all()


@pytest.mark.parametrize("dtype", INTS, ids=str)
@pytest.mark.parametrize("beyond", [-1, 1])
@pytest.mark.parametrize("boxed", [list, tuple])
def test_an_integer_out_of_range_is_named_with_the_range(dtype, beyond, boxed):
    limits = np.iinfo(CARRIERS[dtype])
    value = int(limits.max) + 1 if beyond > 0 else int(limits.min) - 1
    with pytest.raises(OverflowError, match=str(value)):
        exact(boxed([0, value]), dtype)


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.uint64], ids=str)
@pytest.mark.parametrize("value", [1.0, 0.5, math.nan, np.float32(2)])
def test_a_float_never_becomes_an_integer(dtype, value):
    for values in ([0, value], np.array([value]), torch.tensor([float(value)])):
        with pytest.raises(TypeError, match="float"):
            exact(values, dtype)


@pytest.mark.parametrize(
    ("dtype", "kept", "lost"),
    [
        (torch.float16, [2048, -2048, 65504, 4100], [2049, 65505, 65536]),
        (torch.bfloat16, [256, 2**62, -(2**40)], [257, 2**62 + 1]),
        (torch.float32, [2**24, 2**63, -(2**63)], [2**24 + 1, 2**63 - 1]),
        (torch.float64, [2**53, -(2**63), 2**63], [2**53 + 1, 2**63 - 1]),
    ],
    ids=str,
)
def test_an_integer_becomes_a_float_only_where_exact(dtype, kept, lost):
    for value in kept:
        assert _floats(exact([value], dtype), dtype)[0] == value
    for value in lost:
        with pytest.raises(OverflowError, match=str(value)):
            exact([value], dtype)
        with pytest.raises(OverflowError, match=str(value)):
            exact([value, 0.5], dtype)  # numpy would have rounded it on the way


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rounding_keeps_infinities_nans_and_negative_zero(dtype):
    result = _floats(exact([math.inf, -math.inf, math.nan, -0.0], dtype), dtype)
    assert result[0] == math.inf
    assert result[1] == -math.inf
    assert math.isnan(result[2])
    assert math.copysign(1, result[3]) == -1


@pytest.mark.parametrize(
    ("dtype", "value"), [(torch.float16, 65520.0), (torch.bfloat16, 3.4e38), (torch.float32, 3.5e38)], ids=str
)
def test_a_finite_float_never_becomes_infinite(dtype, value):
    for values in ([value], np.array([value]), torch.tensor([value], dtype=torch.float64)):
        with pytest.raises(OverflowError, match="infinite"):
            exact(values, dtype)


@given(st.floats(allow_nan=False, allow_infinity=False, width=64, min_value=-1e38, max_value=1e38))
def test_bfloat16_is_the_nearest_of_all_and_ties_go_to_even(value):
    bits = int(exact([value], torch.bfloat16)[0])
    got = Fraction(_bfloat16(bits))
    for step in (-1, 1):
        magnitude = (bits & 0x7FFF) + step
        if 0 <= magnitude <= 0x7F7F:
            other = Fraction(_bfloat16((bits & 0x8000) | magnitude))
            near, far = abs(Fraction(value) - got), abs(Fraction(value) - other)
            assert near < far or (near == far and bits % 2 == 0)


def test_bfloat16_of_float32_equals_torch():
    values = np.random.default_rng(0).integers(0, 2**32, 20_000, np.uint32).view(np.float32)
    values = values[np.isfinite(values) & (np.abs(values) < 3e38)]
    want = torch.from_numpy(values).to(torch.bfloat16).view(torch.uint16).numpy()
    assert (exact(values, torch.bfloat16) == want).all()


def test_a_tensor_of_the_dtype_keeps_every_bit():
    bits = np.arange(2**16, dtype=np.uint16)
    tensor = torch.from_numpy(bits.copy()).view(torch.bfloat16)
    assert (exact(tensor, torch.bfloat16) == bits).all()


@pytest.mark.parametrize("dtype", [*INTS, *FLOATS, torch.bool], ids=str)
def test_bools_become_0_and_1(dtype):
    assert _floats(exact([True, False], dtype), dtype).tolist() == [1, 0]


def test_only_0_and_1_become_bools():
    assert exact([0, 1, True], torch.bool).tolist() == [False, True, True]
    with pytest.raises(OverflowError, match="2"):
        exact([0, 2], torch.bool)


def test_buffers_and_ranges_are_taken_whole():
    assert exact(array.array("q", [1, 2]), torch.int32).tolist() == [1, 2]
    assert exact(range(3), torch.int8).tolist() == [0, 1, 2]
    assert exact([], torch.int8).dtype == np.int8


@pytest.mark.parametrize("bad", [["a"], [None], [1j], "text", [[1], [2, 3]], [object()], {"a": 1}])
def test_what_is_no_number_is_refused(bad):
    with pytest.raises((TypeError, ValueError)):
        exact(bad, torch.int32)


@pytest.mark.parametrize("values", [[np.int64(4096), 0.5], [2**70, 0.5], [np.float16(1), 3], [torch.tensor(2), 0.5]])
def test_numbers_of_mixed_kinds_are_each_taken_as_they_are(values):
    assert exact(values, torch.float32).tolist() == [float(value) for value in values]
    assert exact(range(2**63 - 1, 2**63 + 1), torch.uint64).tolist() == [2**63 - 1, 2**63]
    with pytest.raises(OverflowError, match=str(2**24 + 1)):
        exact([torch.tensor(2**24 + 1), 0.5], torch.float32)
    with pytest.raises(TypeError, match=r"2\.5 is a float"):
        exact([1, 2.5], torch.int32)


def test_integers_beyond_64_bits_are_named():
    with pytest.raises(OverflowError, match=str(2**70)):
        exact([2**70], torch.int64)
    with pytest.raises(OverflowError, match=str(-1)):
        exact([2**63, -1], torch.uint64)


def _bfloat16(bits: int) -> float:
    return float(np.array([bits << 16], np.uint32).view(np.float32)[0])


def _floats(result: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    if dtype == torch.bfloat16:
        return (result.astype(np.uint32) << 16).view(np.float32)
    return result
