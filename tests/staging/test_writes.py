"""Staged writes against a plain numpy array: edges, order, overlap, dtypes, and calls that fail."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from staging import FusedStagedWriter, StagedWriteTensor
from staging.dtypes import CARRIERS
from staging.packing import pack, scatter
from staging.write_log import STASH_NBYTES, WriteLog

EDGES = [0, 1, 2, 3, 1023, 1024, 1025]
DTYPES = [d for d in CARRIERS if d not in (torch.uint16, torch.uint32)]


def _values(rng, dtype, count):
    """Random values that `dtype` holds, as (what to stage, the bits due)."""
    carried = CARRIERS[dtype]
    if dtype == torch.bool:
        values = rng.integers(0, 2, count).astype(bool)
    elif dtype.is_floating_point:
        values = rng.integers(-200, 200, count).astype(np.float64) / 2
    else:
        values = rng.integers(np.iinfo(carried).min, np.iinfo(carried).max, count, carried, endpoint=True)
    if dtype == torch.bfloat16:
        return values, (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values, values.astype(carried)


def _got(world, tensor):
    return world.read(tensor.device_tensor)()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("uva", [False, True])
def test_edge_lengths_land_where_they_were_staged(world, dtype, uva):
    rng = np.random.default_rng(1)
    tensor = StagedWriteTensor((len(EDGES) + 2, 1027), dtype, world.device, None, uva, manager=world.manager)
    due = np.zeros((len(EDGES) + 2, 1027), CARRIERS[dtype])
    for row, length in enumerate(EDGES):
        for start in {0, 1, 1027 - length}:
            if start + length <= 1027:
                values, bits = _values(rng, dtype, length)
                tensor.stage_write(row, start, values if row % 2 else values.tolist())
                due[row, start : start + length] = bits
    values, bits = _values(rng, dtype, 1027)
    tensor.stage_write(np.int32(len(EDGES) + 1), np.int64(0), values)
    due[-1] = bits
    tensor.apply_write()
    assert (_got(world, tensor) == due).all()


@pytest.mark.parametrize("batch", [False, True])
def test_a_full_table_is_written_in_one_apply(world, batch):
    tensor = StagedWriteTensor((5, 2049), torch.int32, world.device, manager=world.manager)
    due = np.arange(5 * 2049, dtype=np.int32).reshape(5, 2049)
    if batch:
        tensor.stage_writes(range(5), 0, due)
    else:
        for row in range(5):
            tensor.stage_write(row, 0, due[row])
    tensor.apply_write()
    assert (_got(world, tensor) == due).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fused", [False, True])
def test_a_batch_holds_any_dtype(world, dtype, fused):
    values, bits = _values(np.random.default_rng(3), dtype, 6)
    tensor = StagedWriteTensor((4, 3), dtype, world.device, manager=world.manager)
    if fused:
        writer = FusedStagedWriter(world.device, 4, manager=world.manager)
        writer.stage([tensor], [0, 0, 0], [3, 0, 1], 0, values.tolist(), [1, 3, 2])
        writer.apply([tensor])
    else:
        tensor.stage_writes([3, 0, 1], 0, values, [1, 3, 2])
        tensor.apply_write()
    due = np.zeros((4, 3), bits.dtype)
    due[3, :1], due[0], due[1, :2] = bits[:1], bits[1:4], bits[4:]
    assert (_got(world, tensor) == due).all()


def test_a_fused_batch_converts_each_value_once_and_by_its_own_tensor(world):
    ints = StagedWriteTensor(4, torch.int32, world.device, manager=world.manager)
    floats = StagedWriteTensor(4, torch.float32, world.device, manager=world.manager)
    writer = FusedStagedWriter(world.device, 4, manager=world.manager)
    writer.stage([ints, floats], [0, 1], 0, 0, [1, 0.5])
    writer.stage([ints], {"a": 0}.values(), 1, 0, {"b": 7}.values())
    with pytest.raises(OverflowError, match=str(2**24 + 1)):
        writer.stage([ints, floats], [0, 1, 1], 0, 0, [1, 2**24 + 1, 0.5])
    writer.apply([ints, floats])
    assert _got(world, ints).tolist() == [1, 7, 0, 0]
    assert _got(world, floats).tolist() == [0.5, 0, 0, 0]


@pytest.mark.parametrize("ascending", [False, True])
@pytest.mark.parametrize("dtype", [torch.int32, torch.float64, torch.bfloat16], ids=str)
def test_fused_elements_land_however_they_are_ordered(world, dtype, ascending):
    shapes = [(5, 7), (3, 11), (6, 2)]
    tensors = [StagedWriteTensor(shape, dtype, world.device, manager=world.manager) for shape in shapes]
    writer = FusedStagedWriter(world.device, 4, manager=world.manager)
    rng, due = np.random.default_rng(8), [np.zeros(shape, CARRIERS[dtype]) for shape in shapes]
    for count in (1, 2, 40):
        ids = rng.integers(0, 3, count)
        ids = np.sort(ids) if ascending else ids
        rows = np.array([rng.integers(shapes[i][0]) for i in ids])
        starts = np.array([rng.integers(shapes[i][1]) for i in ids])
        values, bits = _values(rng, dtype, count)
        writer.stage(tensors, ids, rows, starts, values)
        for which, row, start, bit in zip(ids, rows, starts, bits, strict=True):
            due[which][row, start] = bit
        writer.apply(tensors)
    with pytest.raises(IndexError, match=r"start 2 . length 1 passes the row's 2 columns"):
        writer.stage(tensors, [0, 2], [4, 5], [6, 2], values[:2])
    with pytest.raises(IndexError, match="row -1"):
        writer.stage(tensors, [0, 2], [4, -1], 0, values[:2])
    writer.apply(tensors)
    assert all((_got(world, tensor) == bits).all() for tensor, bits in zip(tensors, due, strict=True))


def test_one_dimensional_writes_start_at_index_plus_start(world):
    tensor = StagedWriteTensor(10, torch.int64, world.device, manager=world.manager)
    tensor.stage_write(3, 4, [1, 2, 3])
    tensor.stage_write_elem(0, 9)
    tensor.stage_writes([1, 5], [0, 1], [7, 8])
    tensor.apply_write()
    assert _got(world, tensor).tolist() == [9, 7, 0, 0, 0, 0, 8, 1, 2, 3]  # 5+1 = 6, 3+4 = 7


def test_the_last_staged_write_wins_where_writes_overlap(world):
    tensor = StagedWriteTensor((1, 3000), torch.int32, world.device, manager=world.manager)
    due = np.zeros((1, 3000), np.int32)
    rng = np.random.default_rng(2)
    for write in range(60):
        start = int(rng.integers(0, 2900))
        length = int(rng.integers(1, 3000 - start))
        tensor.stage_write(0, start, [write + 1] * length)
        due[0, start : start + length] = write + 1
    tensor.apply_write()
    assert (_got(world, tensor) == due).all()


def test_several_applies_follow_one_another_and_clear_drops_the_rest(world):
    tensor = StagedWriteTensor((3, 4), torch.float32, world.device, manager=world.manager)
    reads = []
    for step in range(12):
        tensor.stage_write(step % 3, 0, [step] * 4)
        tensor.apply_write()
        reads.append(world.read(tensor.device_tensor))
    address = tensor.device_tensor.data_ptr()
    tensor.stage_write(0, 0, [-1])
    tensor.clear_staged_writes()
    tensor.apply_write()
    assert [read()[step % 3, 0] for step, read in enumerate(reads)] == list(range(12))
    assert _got(world, tensor)[:, 0].tolist() == [9, 10, 11]
    assert tensor.device_tensor.data_ptr() == address


def test_staged_values_do_not_alias_the_callers_memory(world):
    tensor = StagedWriteTensor((1, 4), torch.int32, world.device, manager=world.manager)
    mine = np.array([1, 2, 3, 4], np.int32)
    tensor.stage_write(0, 0, mine)
    mine[:] = 9
    tensor.apply_write()
    assert _got(world, tensor).tolist() == [[1, 2, 3, 4]]


def test_a_fused_apply_takes_any_dtypes_and_empty_members(world):
    rng = np.random.default_rng(4)
    tensors = [StagedWriteTensor((4, 1100), d, world.device, manager=world.manager) for d in DTYPES]
    due = [np.zeros((4, 1100), CARRIERS[d]) for d in DTYPES]
    writer = FusedStagedWriter(world.device, 2, manager=world.manager)
    for round_number in range(3):
        for index, tensor in enumerate(tensors):
            if (index + round_number) % 4 == 0:
                continue  # an empty member
            for row in range(3):
                values, bits = _values(rng, tensor.dtype, 30 * row + 1)
                tensor.stage_write(row, round_number, values)
                due[index][row, round_number : round_number + len(bits)] = bits
        ptrs = torch.zeros(len(tensors), dtype=torch.uint64, device=world.device)
        strides = torch.zeros(len(tensors), dtype=torch.int64, device=world.device)
        writer.apply(tensors, ptrs, strides)
    assert all((_got(world, tensor) == bits).all() for tensor, bits in zip(tensors, due, strict=True))


def test_fused_staging_is_ordered_and_all_or_nothing(world):
    a = StagedWriteTensor((2, 4), torch.int32, world.device, manager=world.manager)
    b = StagedWriteTensor(6, torch.int64, world.device, manager=world.manager)
    writer = FusedStagedWriter(world.device, 8, manager=world.manager)
    with pytest.raises(IndexError, match="write 1: row 6"):
        writer.stage([a, b], [0, 1, 1], [0, 0, 6], 0, [1, 2, 3])
    with pytest.raises(OverflowError, match=str(2**31)):
        writer.stage([a, b], [1, 0], [0, 0], 0, [1, 2**31])
    assert not a.log
    assert not b.log
    writer.stage([a, b], [0, 1, 0, 1], [1, 2, 1, 3], [0, 0, 1, 0], [1, 2, 3, 4, 5, 6], [2, 1, 2, 1])
    writer.apply([a, b])
    assert _got(world, a).tolist() == [[0] * 4, [1, 4, 5, 0]]
    assert _got(world, b).tolist() == [0, 0, 3, 6, 0, 0]


def test_fused_apply_refuses_lists_it_cannot_mean(world):
    tensor = StagedWriteTensor(4, torch.int32, world.device, manager=world.manager)
    tensor.stage_write_elem(1, 5)
    writer = FusedStagedWriter(world.device, 8, manager=world.manager)
    with pytest.raises(ValueError, match="listed twice"):
        writer.apply([tensor, tensor])
    with pytest.raises(ValueError, match="output_ptrs holds 2 entries"):
        writer.apply([tensor], torch.zeros(2, dtype=torch.uint64, device=world.device))
    with pytest.raises(TypeError, match="not a StagedWriteTensor"):
        writer.apply([torch.zeros(4)])
    writer.apply([tensor])
    assert _got(world, tensor).tolist() == [0, 5, 0, 0]


def _midway():
    yield 1
    raise KeyError("midway")


BAD_CALLS = [
    (lambda t: t.stage_write(-1, 0, [1]), IndexError, "row -1 .* 0 to 3"),
    (lambda t: t.stage_write(4, 0, [1]), IndexError, "row 4 .* 4 rows"),
    (lambda t: t.stage_write(0, -1, [1]), IndexError, "start -1"),
    (lambda t: t.stage_write(0, 4, [1, 2]), IndexError, "start 4 . length 2 .* 5 columns"),
    (lambda t: t.stage_write(0, 0, range(6)), IndexError, "length 6 .* 5 columns"),
    (lambda t: t.stage_writes([0, 1], 2**63 - 1, [1, 2]), IndexError, f"start {2**63 - 1}"),
    (lambda t: t.stage_writes([2**62, 0], 0, [1, 2]), IndexError, f"write 0: row {2**62}"),
    (lambda t: t.stage_writes([0, 1, 2], 0, [1], [2**62, 2**62, 2**63 - 1]), ValueError, "lengths sum to"),
    (lambda t: t.stage_write(1.0, 0, [1]), TypeError, "row=1.0"),
    (lambda t: t.stage_write(0, "a", [1]), TypeError, "start='a'"),
    (lambda t: t.stage_write(0, 0, [[1, 2]]), ValueError, "rank 2"),
    (lambda t: t.stage_write(0, 0, 5), ValueError, "rank 0"),
    (lambda t: t.stage_write(0, 0, [1, 2**31]), OverflowError, str(2**31)),
    (lambda t: t.stage_write(0, 0, [0.5]), TypeError, "float"),
    (lambda t: t.stage_write(0, 0, _midway()), KeyError, "midway"),
    (lambda t: t.stage_write_elem(0, [1, 2]), ValueError, "one value"),
    (lambda t: t.stage_write_elem(9, 1), IndexError, "row 9"),
    (lambda t: t.stage_writes([], [], []), ValueError, "empty"),
    (lambda t: t.stage_writes([0, 1], 0, [1]), ValueError, r"shape \(1,\) for 2 writes"),
    (lambda t: t.stage_writes([0, 1], [0], [1, 2, 3], [1, 1]), ValueError, "sum to 2, .* 3 values"),
    (lambda t: t.stage_writes([0, 1], 0, [1], [2, -1]), ValueError, "write 1: length -1"),
    (lambda t: t.stage_writes([0, 1], 0, [1], [1]), ValueError, "1 lengths for 2"),
    (lambda t: t.stage_writes([0, 9], 0, [1, 2]), IndexError, "write 1: row 9"),
    (lambda t: t.stage_writes([0, 1], [0, 1, 2], [1, 2]), ValueError, "3 starts for 2 rows"),
    (lambda t: t.stage_writes([[0, 1]], 0, [1, 2]), ValueError, "rank 2"),
]


@pytest.mark.parametrize(("call", "error", "text"), BAD_CALLS, ids=[text for _, _, text in BAD_CALLS])
def test_a_bad_call_stages_nothing_and_the_next_good_one_works(world, call, error, text):
    tensor = StagedWriteTensor((4, 5), torch.int32, world.device, manager=world.manager)
    tensor.stage_write(1, 1, [7])
    with pytest.raises(error, match=text):
        call(tensor)
    tensor.stage_write(2, 2, [8])
    tensor.apply_write()
    due = np.zeros((4, 5), np.int32)
    due[1, 1], due[2, 2] = 7, 8
    assert (_got(world, tensor) == due).all()


@pytest.mark.parametrize(("size", "text"), [((2, 2, 2), "rank 3"), (-1, "extents >= 0"), ((), "extents >= 0")])
def test_shapes_that_make_no_table_are_refused(world, size, text):
    with pytest.raises(ValueError, match=text):
        StagedWriteTensor(size, torch.int32, world.device, manager=world.manager)


def test_large_writes_are_read_from_where_they_were_stashed(world, monkeypatch):
    large = STASH_NBYTES // 4
    tensors = [StagedWriteTensor((2, 3 * large), torch.int32, world.device, 2, manager=world.manager) for _ in range(2)]
    writer = FusedStagedWriter(world.device, 4, manager=world.manager)
    due, reads = [np.zeros((2, 3 * large), np.int32) for _ in tensors], []
    for step in range(1, 7):
        for which, tensor in enumerate(tensors):
            values = np.arange(large + step, dtype=np.int32) * step
            writes = [
                (0, step, values),
                (0, large, [step] * 5),
                (1, 7, values.tolist()),
                (0, 2 * large - 9, values[:large]),
            ]
            for row, start, part in writes:
                tensor.stage_write(row, start, part)
                due[which][row, start : start + len(part)] = part
        tensors[0].stage_write(1, 0, values)
        tensors[0].clear_staged_writes()
        for row, start, part in writes:
            tensors[0].stage_write(row, start, part)
        values[:] = -1  # the caller's memory is his own again
        if step == 3:
            with monkeypatch.context() as patch:
                patch.setattr(world.manager.backend, "apply", _refuse)
                with pytest.raises(RuntimeError, match="no launch"):
                    writer.apply(tensors)
            tensors[1].stage_write(1, 0, [step])
            due[1][1, 0] = step
        writer.apply(tensors) if step % 2 else [tensor.apply_write() for tensor in tensors]
        reads += [(world.read(t.device_tensor), bits.copy()) for t, bits in zip(tensors, due, strict=True)]
    assert all((read() == bits).all() for read, bits in reads)


def test_a_failed_apply_keeps_the_log_for_a_retry(world, monkeypatch):
    tensor = StagedWriteTensor(4, torch.int32, world.device, manager=world.manager)
    tensor.stage_write(0, 0, [1, 2])
    with monkeypatch.context() as patch:
        patch.setattr(world.manager.backend, "apply", _refuse)
        with pytest.raises(RuntimeError, match="no launch"):
            tensor.apply_write()
    tensor.stage_write(0, 1, [3])
    tensor.apply_write()
    assert _got(world, tensor).tolist() == [1, 3, 0, 0]


def _refuse(*args):
    raise RuntimeError("no launch")


@pytest.mark.parametrize("num", [STASH_NBYTES // 4, (1 << 16) - 1, 1 << 16, (1 << 20) + 1])
def test_a_large_write_alone_is_copied_without_a_kernel(world, monkeypatch, num):
    tensor = StagedWriteTensor((3, num + 7), torch.int32, world.device, 2, manager=world.manager)
    reads, dues, due = [], [], np.zeros((3, num + 7), np.int32)
    for step in range(1, 5):
        values = np.arange(num, dtype=np.int32) + step
        tensor.stage_write(1, step, values)
        values[:] = -1
        due[1, step : step + num] = np.arange(num) + step
        with monkeypatch.context() as patch:
            patch.setattr(world.manager.backend, "apply", _refuse)
            if step == 2:
                patch.setattr(world.manager.backend, "move", _refuse)
                with pytest.raises(RuntimeError, match="no launch"):
                    tensor.apply_write()
                patch.undo()
            tensor.apply_write()
        reads.append(world.read(tensor.device_tensor))
        dues.append(due.copy())
    for read, expected in zip(reads, dues, strict=True):
        assert (read() == expected).all()


writes = st.lists(st.tuples(st.integers(0, 70), st.integers(1, 10)), min_size=1, max_size=50)


@given(writes)
@settings(max_examples=200, deadline=None)
def test_packed_runs_are_disjoint_and_the_last_write_wins(spans):
    log, due, value = WriteLog((80,), torch.int16), np.zeros(80, np.int16), 0
    for offset, length in spans:
        values = np.arange(value, value + length, dtype=np.int16)
        log.stage(offset, 0, values)
        due[offset : offset + length] = values
        value += length
    packed = pack([log])
    runs = sorted(packed.columns())
    assert all(first[1] + first[4] <= second[1] for first, second in pairwise(runs))
    buffer, got = np.zeros(packed.nbytes, np.uint8), np.zeros(80, np.int16)
    packed.write(buffer, targets=[0], packed=0, stashes=[])
    scatter([buffer], packed, [got.view(np.uint8)])
    assert (got == due).all()
