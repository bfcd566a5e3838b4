"""Bits from every kind of input to the device, by every way in: what was given is what is read."""

from __future__ import annotations

import array

import numpy as np
import pytest
import torch

import staging
from staging.dtypes import CARRIERS

DTYPES = [
    torch.bool,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]
LENGTHS = [0, 1, 2, 3, 1023, 1024, 1025]


def _all_bits(dtype: torch.dtype) -> np.ndarray:
    """Every pattern of up to 16 bits, else random ones and the edges; of floats, NaNs with payloads (signalling ones
    too), infinities and -0.0 among them."""
    carried = CARRIERS[dtype]
    if dtype == torch.bool:
        return np.array([False, True, True, False])
    bits = np.dtype(f"u{carried.itemsize}")
    if carried.itemsize <= 2:
        return np.arange(1 << (8 * carried.itemsize)).astype(bits).view(carried)
    width = 8 * carried.itemsize
    some = np.random.default_rng(7).integers(0, 2**width, 500, bits, endpoint=False)
    edges = np.array([0, 1, 1 << (width - 1), (1 << width) - 1], bits)
    if carried.kind == "f":
        infinite = np.array([np.inf, -np.inf], carried).view(bits)
        edges = np.concatenate([edges, infinite, infinite | bits.type(1), infinite | bits.type(1 << 20)])
    return np.concatenate([some, edges]).view(carried)


def _tensor_of(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(values.copy()).view(dtype)


def _bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


ROUTES = {  # each puts flat values on the device and returns the device tensor that holds them
    "stage_write": lambda m, x, n, dtype: _staged(m, n, dtype, lambda t: t.stage_write(1, 2, x)),
    "stage_writes": lambda m, x, n, dtype: _staged(m, n, dtype, lambda t: t.stage_writes([1], 2, x, [n])),
    "fused": lambda m, x, n, dtype: _staged(m, n, dtype, lambda t: _fused(m, t, n, x)),
    "pool": lambda m, x, n, dtype: staging.UvaBufferPool(1, dtype, manager=m).copy_to_uva(x),
    "gpu": lambda m, x, n, dtype: staging.UvaBufferPool(n, dtype, manager=m).copy_to_gpu(x),
    "transfer": lambda m, x, n, dtype: staging.async_tensor_h2d(x, dtype=dtype, manager=m),
}


def _staged(manager, n, dtype, stage):
    tensor = staging.StagedWriteTensor((2, n + 3), dtype, manager=manager)
    stage(tensor)
    tensor.apply_write()
    return tensor.gpu[1, 2 : 2 + n]


def _fused(manager, tensor, n, values):
    staging.FusedStagedWriter(None, 1, manager=manager).stage([tensor], [0], 1, 2, values, [n])


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_bit_pattern_arrives(world, route, dtype):
    values = _all_bits(dtype)
    forms = [_tensor_of(values, dtype)]
    if dtype != torch.bfloat16:  # numpy has none
        forms += [values, values.astype(values.dtype.newbyteorder())]
    for form in forms:
        tensor = ROUTES[route](world.manager, form, len(values), dtype)
        assert (_bits(world.read(tensor)()) == _bits(values)).all()


def _read_only(values):
    values = values.copy()
    values.flags.writeable = False
    return values


INPUTS = {
    "list": lambda values: values.tolist(),
    "tuple": lambda values: tuple(values.tolist()),
    "array.array": lambda values: array.array(values.dtype.char, values.tolist()),
    "memoryview": memoryview,
    "numpy scalars": list,
    "generator": lambda values: (value for value in values.tolist()),
    "dict view": lambda values: dict(enumerate(values.tolist())).values(),
    "objects": lambda values: values.astype(object),
    "ndarray": lambda values: values,
    "strided": lambda values: np.repeat(values, 3)[1::3],
    "reversed": lambda values: values[::-1].copy()[::-1],
    "column": lambda values: np.stack([values, values], axis=1)[:, 1],
    "other byte order": lambda values: values.astype(values.dtype.newbyteorder()),
    "read-only": _read_only,
    "tensor": lambda values: torch.from_numpy(values.copy()),
    "strided tensor": lambda values: torch.from_numpy(np.repeat(values, 2))[::2],
    "tensor with grad": lambda values: torch.from_numpy(values.copy()).requires_grad_(),
    "negated view": lambda values: torch._neg_view(torch.from_numpy(-values)),
}
FLOATS_ONLY = {"tensor with grad", "negated view"}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("dtype", [torch.int16, torch.int64, torch.float32], ids=str)
def test_every_kind_of_input_arrives(world, route, dtype):
    carried = CARRIERS[dtype]
    values = np.array([0, 1, -1, 77, -0.0 if carried.kind == "f" else 5, -3], carried)
    for name, make in INPUTS.items():
        if carried.kind != "f" and name in FLOATS_ONLY:
            continue
        given = make(values)
        seen = world.read(ROUTES[route](world.manager, given, len(values), dtype))()
        assert (_bits(seen) == _bits(values)).all(), name


@pytest.mark.parametrize("route", ROUTES)
def test_a_range_and_one_number_arrive(world, route):
    seen = world.read(ROUTES[route](world.manager, range(250, 0, -2), 125, torch.uint8))()
    assert seen.tolist() == list(range(250, 0, -2))
    tensor = staging.StagedWriteTensor((3, 2), torch.float64, manager=world.manager)
    for row, one in enumerate([np.float32(0.1), torch.tensor(-0.0), np.array([7])]):
        tensor.stage_write_elem(row, one)
    tensor.apply_write()
    due = np.array([np.float32(0.1), -0.0, 7], np.float64)
    assert (_bits(world.read(tensor.gpu)()[:, 0]) == _bits(due)).all()


@pytest.mark.parametrize("columns", [1, 3, 8191])
@pytest.mark.parametrize("dtype", [torch.int8, torch.int64], ids=str)
def test_rows_of_odd_strides_are_written_first_last_and_all(world, columns, dtype):
    rng, rows = np.random.default_rng(columns), 5
    due = np.zeros((rows, columns), CARRIERS[dtype])
    tensor = staging.StagedWriteTensor((rows, columns), dtype, manager=world.manager)
    for row in (0, rows - 1):
        for length in {min(length, columns) for length in LENGTHS}:
            values = rng.integers(-99, 99, length).astype(due.dtype)
            tensor.stage_write(row, columns - length, values)
            due[row, columns - length :] = values
    tensor.apply_write()
    part = world.read(tensor.gpu)
    full = rng.integers(-99, 99, (rows, columns)).astype(due.dtype)
    tensor.stage_writes(np.arange(rows), 0, full)
    tensor.apply_write()
    assert (world.read(tensor.gpu)() == full).all()
    assert (part() == due).all()


@pytest.mark.parametrize("length", LENGTHS)
def test_one_fused_apply_mixes_all_dtypes_at_edge_lengths(world, length):
    tensors = [staging.StagedWriteTensor((2, 1027), dtype, manager=world.manager) for dtype in DTYPES]
    due = []
    for tensor in tensors:
        values = np.resize(_all_bits(tensor.dtype), length)
        if length:
            tensor.stage_write(1, 1, _tensor_of(values, tensor.dtype))
        due.append(np.zeros((2, 1027), values.dtype))
        due[-1][1, 1 : 1 + length] = values
    staging.FusedStagedWriter(None, 1, manager=world.manager).apply(tensors)
    for tensor, values in zip(tensors, due, strict=True):
        assert (_bits(world.read(tensor.gpu)()) == _bits(values)).all()


def test_true_is_row_1_as_operator_index_has_it(world):
    tensor = staging.StagedWriteTensor((3, 2), torch.int32, manager=world.manager)
    tensor.stage_write(True, False, [5])
    tensor.stage_writes([False, True], True, [6, 7])
    tensor.stage_write_elem(np.int8(2), True)
    tensor.apply_write()
    assert world.read(tensor.gpu)().tolist() == [[0, 6], [5, 7], [1, 0]]


@pytest.mark.parametrize("lengths", [[2, 0], [0, 2], [3, 0, 0], [1, 1, 2, 0, 1], [0, 0]])
def test_fused_writes_of_no_elements_take_none_of_the_others(world, lengths):
    tensors = [staging.StagedWriteTensor((5, 4), dtype, manager=world.manager) for dtype in (torch.int32, torch.int64)]
    due, values = np.zeros((2, 5, 4), np.int64), np.arange(1, sum(lengths) + 1)
    ids, starts = np.arange(len(lengths)) % 2, np.cumsum([0, *lengths[:-1]])
    for write, (length, start) in enumerate(zip(lengths, starts, strict=True)):
        due[ids[write], write, :length] = values[start : start + length]
    writer = staging.FusedStagedWriter(None, 1, manager=world.manager)
    for given in (values, values.tolist(), torch.from_numpy(values)):
        writer.stage(tensors, ids, range(len(lengths)), 0, given, lengths)
        writer.apply(tensors)
        assert [world.read(tensor.gpu)().tolist() for tensor in tensors] == due.tolist()


@pytest.mark.gpu
def test_rows_beyond_2_to_the_31_elements_are_written(world):
    if world.device.type != "cuda":
        pytest.skip("needs a GPU with 6 GiB")
    columns = 2**30 + 8
    tensor = staging.StagedWriteTensor((3, columns), torch.int8, manager=world.manager)
    values = np.arange(1, 126, dtype=np.int8)
    for start in (0, columns - len(values)):
        tensor.stage_write(2, start, values)
    tensor.stage_writes([2, 1], columns // 2, values[:2])
    tensor.apply_write()
    last = tensor.gpu[2]
    for start in (0, columns - len(values)):
        assert (world.read(last[start : start + len(values)])() == values).all()
    assert world.read(tensor.gpu[:, columns // 2])().tolist() == [0, 2, 1]
    assert int(torch.count_nonzero(tensor.gpu[2])) == 2 * len(values) + 1
    assert int(torch.count_nonzero(tensor.gpu[1])) == 1
