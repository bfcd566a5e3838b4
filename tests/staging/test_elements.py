"""Packed elements: the kernel against its reference, the ways a batch takes, and what ends each of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import staging
from staging import FusedStagedWriter, StagedWriteTensor
from staging.elements import ElementWrites, Layout, packed_in, scatter_elements
from staging.keys import keys_of
from staging.launch import PackedBatch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COUNTS = [1, 2, 1023, 1024, 1025, 2500]


def _packed(num, num_targets, kind, *, width, pitch, addresses):
    """Random elements, each place once, in rows of `pitch` elements of which the keys see `width`."""
    rng, span = np.random.default_rng(num), -(-num // num_targets) + 3
    table = [number for address in addresses for number in (address, pitch * kind.itemsize)]
    layout = Layout(table, span=span, width=width, itemsize=kind.itemsize)
    host = torch.zeros(layout.nbytes(num), dtype=torch.uint8)
    writes = ElementWrites(host.numpy())
    writes.open(num, layout)
    writes.fill(rng.permutation(span * num_targets * width)[:num], rng.integers(1, 127, num).astype(kind))
    return host


@pytest.mark.parametrize("width", [1, 3, 5])
@pytest.mark.parametrize("num_targets", [1, 3])
@pytest.mark.parametrize(("kind", "num"), [*(("i4", n) for n in COUNTS), ("i1", 700), ("i2", 700), ("i8", 1500)])
@pytest.mark.parametrize("num_programs", [1, 3])
def test_the_kernel_does_what_its_reference_does(kind, num, num_targets, width, num_programs):
    kernels, kind, pitch = pytest.importorskip("staging.kernels"), np.dtype(kind), 5
    nbytes = (-(-num // num_targets) + 3) * pitch * kind.itemsize
    targets = [torch.zeros(nbytes, dtype=torch.uint8, device=DEVICE) for _ in range(num_targets)]
    addresses = [target.data_ptr() for target in targets]
    host = _packed(num, num_targets, kind, width=width, pitch=pitch, addresses=addresses)
    kernels.scatter_elements(host.to(DEVICE).view(torch.int64), num_programs)
    due = [np.zeros(nbytes, np.uint8) for _ in targets]
    scatter_elements(packed_in(host.numpy()), due, addresses)
    for target, expected in zip(targets, due, strict=True):
        assert (target.cpu().numpy() == expected).all()
    assert sum(np.count_nonzero(array.view(kind)) for array in due) == num


def test_the_kernel_sets_the_word_it_is_given():
    kernels = pytest.importorskip("staging.kernels")
    target, word = (torch.zeros(4, dtype=torch.int64, device=DEVICE) for _ in range(2))
    host = torch.zeros(256, dtype=torch.uint8)
    writes = ElementWrites(host.numpy())
    writes.open(2, Layout([target.data_ptr(), 8], span=4, width=1, itemsize=8))
    writes.fill(np.array([3, 0]), np.array([11, 12]))
    writes.words[5], writes.words[6] = word[1:].data_ptr(), 77
    kernels.scatter_elements(host.to(DEVICE).view(torch.int64), 1)
    assert word.tolist() == [0, 77, 0, 0]
    assert target.tolist() == [12, 0, 0, 11]


@pytest.mark.parametrize(
    ("places", "due"),
    [
        (([4],), [4]),
        (([1, 2, 9],), [1, 2, 9]),
        (([9, 1, 2],), [9, 1, 2]),
        (([1, 1],), None),
        (([3, 1, 3],), None),
        (([-1, 2],), None),
        (([0, 10],), None),
        (([],), None),
        (([0, 0, 9], [3, 0, 4]), [3, 0, 49]),
        (([0, 9, 0], [3, 4, 3]), None),
        (([0, 9], [0, 5]), None),
        (([0, 9], [0, -1]), None),
        (([0], [0, 1]), None),
    ],
)
@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_places_have_keys_where_all_are_inside_and_distinct(places, due, dtype):
    arrays = [np.array(indices, dtype) for indices in places]
    keys = keys_of(arrays, (10, 5)[: len(places)], arrays[0].shape)
    assert (None if keys is None else keys.tolist()) == due


@pytest.mark.parametrize(
    "rows",
    [[0, 1], np.array([0.0, 1.0]), np.array([0, 1], np.uint64), np.array([[0], [1]]), np.array([0, 1, 2]), 0, None],
)
def test_what_is_no_such_array_has_no_keys(rows):
    assert keys_of((np.array([0, 1]), rows), (10, 5), (2,)) is None
    assert keys_of((np.array([0, 1]), np.array([0, 1])), (10, 5), (2,)).tolist() == [0, 6]


@pytest.mark.parametrize("num", [2, 3, 2048])
def test_a_batch_of_any_size_is_judged_as_one_by_one(num):
    rng, shape = np.random.default_rng(num), (8, 1024, 2**31 + 9)
    places = [rng.integers(limit, size=num) for limit in shape]
    expected = [(a * shape[1] + b) * shape[2] + c for a, b, c in zip(*(p.tolist() for p in places), strict=True)]
    assert keys_of(places, shape, (num,)).tolist() == expected
    for place, limit in zip(places, shape, strict=True):
        for bad in (-1, limit, -(2**63)):
            kept, place[num // 2] = place[num // 2], bad
            assert keys_of(places, shape, (num,)) is None
            place[num // 2] = kept
    for place in places:
        place[-1] = place[0]
    assert keys_of(places, shape, (num,)) is None  # a place twice


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("size", [8, (8, 4)])
def test_a_batch_goes_straight_into_a_slot(world, index, size):
    tensor = StagedWriteTensor(size, torch.int32, world.device, manager=world.manager)
    tensor.stage_writes(np.array([0, 2, 5], index), np.zeros(3, index), VALUES)
    assert isinstance(tensor.log.batch, PackedBatch)
    tensor.apply_write()
    assert _got(world, tensor).reshape(8, -1)[ROWS, 0].tolist() == VALUES.tolist()


@pytest.mark.parametrize(("dtype", "values"), [
    (torch.int32, [2**31 - 1, -(2**31)]), (torch.int64, [2**63 - 1, -(2**63)]), (torch.uint32, [0, 2**32 - 1]),
    (torch.uint64, [0, 2**64 - 1]), (torch.float32, [16777217.0, -0.0]), (torch.float64, [0.1, -1e300]),
])  # fmt: skip
@pytest.mark.parametrize("spilled", [False, True])
def test_single_numbers_arrive_as_they_were_staged(world, dtype, values, spilled):
    tensors, writer = _tensors(world, dtype=dtype)
    for tensor in tensors[1:]:
        tensor.stage_write(2, 1, [values[0]])
        tensor.stage_write(5, 3, [values[1]])
        if spilled:
            tensor.stage_write(0, 0, [0, 0])
        assert bool(tensor.log.elements) != spilled  # else this tests another way
    writer.apply(tensors)
    due = torch.tensor(values, dtype=dtype)
    assert (_got(world, tensors[0]) == 0).all()
    for tensor in tensors[1:]:
        assert _got(world, tensor)[[2, 5], [1, 3]].tobytes() == due.numpy().tobytes()


def _tensors(world, num=3, dtype=torch.int32):
    tensors = [StagedWriteTensor((6, 4), dtype, world.device, manager=world.manager) for _ in range(num)]
    return tensors, FusedStagedWriter(world.device, 8, manager=world.manager)


def _got(world, tensor):
    world.settle()
    return tensor.device_tensor.cpu().numpy()


ROWS, VALUES = np.array([0, 2, 5]), np.array([7, 8, 9], np.int32)


def _then_stage_write(tensor):
    tensor.stage_write(2, 1, [50])


def _then_stage_element(tensor):
    tensor.stage_write_elem(2, 50)


def _then_a_list(tensor):
    tensor.stage_write(2, 1, [50, 51])


def _then_a_batch(tensor):
    tensor.stage_writes(np.array([2, 1]), 1, np.array([50, 51], np.int32))


def _due(*later):
    due = np.zeros((6, 4), np.int32)
    due[ROWS, 1] = VALUES
    for row, column, value in later:
        due[row, column] = value
    return due


LATER = {
    _then_stage_write: [(2, 1, 50)],
    _then_stage_element: [(2, 0, 50)],
    _then_a_list: [(2, 1, 50), (2, 2, 51)],
    _then_a_batch: [(2, 1, 50), (1, 1, 51)],
}


@pytest.mark.parametrize("later", LATER)
def test_what_is_staged_after_a_batch_wins(world, later):
    tensor = _tensors(world)[0][0]
    tensor.stage_writes(ROWS, 1, VALUES)
    assert isinstance(tensor.log.batch, PackedBatch)  # else this tests another way
    later(tensor)
    assert tensor.log.batch is None
    tensor.apply_write()
    assert (_got(world, tensor) == _due(*LATER[later])).all()


def test_a_batch_after_other_writes_wins(world):
    tensor = _tensors(world)[0][0]
    tensor.stage_write(2, 0, [1, 2, 3, 4])
    tensor.stage_writes(ROWS, 1, VALUES)
    tensor.apply_writes(ROWS, 0, VALUES)
    due = _due()
    due[2] = [1, 8, 3, 4]
    due[ROWS, 0] = VALUES
    assert (_got(world, tensor) == due).all()


def test_the_caller_may_write_his_arrays_again_at_once(world):
    tensors, writer = _tensors(world)
    rows, values, ids, starts = ROWS.copy(), VALUES.copy(), np.array([0, 1, 2]), np.array([1, 1, 1])
    tensors[0].stage_writes(rows, 1, values)
    rows[:], values[:] = 1, -1
    tensors[0].apply_write()
    rows, values = ROWS.copy(), VALUES.copy()
    writer.stage(tensors[1:], ids[:2], rows[:2], starts[:2], values[:2])
    rows[:], values[:], ids[:], starts[:] = 1, -1, 0, 0
    writer.apply(tensors[1:])
    assert (_got(world, tensors[0]) == _due()).all()
    assert _got(world, tensors[1])[0].tolist() == [0, 7, 0, 0]
    assert _got(world, tensors[2])[2].tolist() == [0, 8, 0, 0]


@pytest.mark.parametrize("starts", [1, np.array([1, 3, 0, 2])], ids=["one", "each"])
@pytest.mark.parametrize("call", ["stage", "apply_writes"])
def test_a_fused_batch_reaches_each_tensor(world, starts, call):
    tensors, writer = _tensors(world)
    ids, rows, values = np.array([0, 0, 2, 2]), np.array([0, 4, 3, 5]), np.array([1, 2, 3, 4], np.int32)
    getattr(writer, call)(tensors, ids, rows, starts, values)
    if call == "stage":
        assert tensors[1].log.batch is tensors[0].log.batch is not None
        writer.apply(tensors)
    due = np.zeros((3, 6, 4), np.int32)
    due[ids, rows, starts] = values
    for tensor, expected in zip(tensors, due, strict=True):
        assert (_got(world, tensor) == expected).all()
        assert not tensor.log


def test_a_fused_batch_may_be_applied_in_parts_and_cleared_in_parts(world):
    tensors, writer = _tensors(world)
    ids, rows, values = np.array([0, 1, 2]), np.array([1, 1, 1]), np.array([1, 2, 3], np.int32)
    writer.stage(tensors, ids, rows, 0, values)
    tensors[1].clear_staged_writes()
    tensors[0].apply_write()
    writer.apply([tensors[2], tensors[1]])
    assert [_got(world, tensor)[1, 0] for tensor in tensors] == [1, 0, 3]
    writer.stage(tensors, ids, rows, 0, values + 5)
    writer.apply(list(reversed(tensors)))
    assert [_got(world, tensor)[1, 0] for tensor in tensors] == [6, 7, 8]


@pytest.mark.parametrize("call", ["stage_writes", "apply_writes"])
def test_a_batch_whose_launch_fails_is_kept(world, monkeypatch, call):
    tensor = _tensors(world)[0][0]
    with monkeypatch.context() as patch:
        patch.setattr(world.manager.backend, "apply_elements", _refuse)
        if call == "stage_writes":
            tensor.stage_writes(ROWS, 1, VALUES)
        with pytest.raises(RuntimeError, match="no launch"):
            tensor.apply_write() if call == "stage_writes" else tensor.apply_writes(ROWS, 1, VALUES)
    for _ in range(4):  # its slot is not given to others meanwhile
        other = StagedWriteTensor((6, 4), torch.int32, world.device, manager=world.manager)
        other.apply_writes(ROWS, 1, VALUES + 30)
    tensor.apply_write()
    assert (_got(world, tensor) == _due()).all()


def _refuse(*args):
    raise RuntimeError("no launch")


def test_many_batches_in_flight_keep_their_slots(world):
    tensors, writer = _tensors(world)
    reads, dues, due = [], [], np.zeros((3, 6, 4), np.int32)
    for step in range(1, 12):
        ids, rows = np.repeat(np.arange(3), 6), np.tile(np.arange(6), 3)
        values = (np.arange(18) + 100 * step).astype(np.int32)
        writer.apply_writes(tensors, ids, rows, step % 4, values)
        due[ids, rows, step % 4] = values
        reads.append([world.read(tensor.device_tensor) for tensor in tensors])
        dues.append(due.copy())
    for read, expected in zip(reads, dues, strict=True):
        assert all((one() == due).all() for one, due in zip(read, expected, strict=True))


def test_a_dropped_tensor_takes_its_part_of_a_batch_along(world):
    tensors, writer = _tensors(world)
    writer.stage(tensors, np.array([0, 1, 2]), np.array([1, 1, 1]), 0, np.array([1, 2, 3], np.int32))
    del tensors[1]
    writer.apply(tensors)
    assert [_got(world, tensor)[1, 0] for tensor in tensors] == [1, 3]
    assert staging.DeviceMemoryManager.stats(world.manager)["slots_current"] >= 0


def test_single_numbers_and_lists_keep_their_order(world):
    tensor = _tensors(world)[0][0]
    for write in [(1, 1, [5]), (1, 0, [1, 2, 3]), (1, 2, [7]), (1, 2, [8, 9]), (1, 3, [6]), (2, 0, [4])]:
        tensor.stage_write(*write)
    tensor.apply_write()
    assert _got(world, tensor)[1:3].tolist() == [[1, 2, 8, 6], [4, 0, 0, 0]]


def test_a_fused_apply_of_single_numbers_reaches_each_tensor(world):
    tensors, writer = _tensors(world)
    for which, tensor in enumerate(tensors):
        for row in range(which + 1):
            tensor.stage_write(row, which, [10 * which + row])
            tensor.stage_write_elem(5, -7 - which)
    writer.apply(tensors)
    for which, tensor in enumerate(tensors):
        due = np.zeros((6, 4), np.int32)
        due[: which + 1, which] = 10 * which + np.arange(which + 1)
        due[5, 0] = -7 - which
        assert (_got(world, tensor) == due).all()


def test_a_fused_batch_comes_after_what_a_tensor_has_staged(world):
    tensors, writer = _tensors(world)
    tensors[1].stage_write(2, 1, [5])
    writer.stage(tensors, np.array([0, 1]), np.array([2, 2]), 1, np.array([6, 7], np.int32))
    for _ in range(2):  # nothing is left for a second time
        writer.apply(tensors)
        assert [_got(world, tensor)[2, 1] for tensor in tensors] == [6, 7, 0]


def test_applies_give_their_slots_back(world):
    tensors, writer = _tensors(world)
    counts = []
    for step in range(40):
        tensors[0].apply_writes(ROWS, 1, VALUES)
        tensors[1].stage_writes(ROWS, np.array([1, 2, 3]), VALUES)
        tensors[1].clear_staged_writes()
        tensors[1].stage_write(1, 1, [step])
        tensors[1].apply_write()
        writer.apply_writes(tensors, np.array([0, 1, 2]), np.array([2, 2, 2]), 1, VALUES)
        writer.stage(tensors, np.array([0, 1, 2]), np.array([2, 2, 2]), 1, VALUES)
        writer.apply(tensors[:2])
        world.settle()
        counts.append(world.manager.stats()["slots_current"])
    assert counts[-1] == counts[1]


def test_batches_work_where_the_budget_left_only_pageable_memory(make_world):
    world = make_world("cpu", limit_bytes=0, on_limit="pageable")
    tensor = _tensors(world)[0][0]
    with pytest.warns(RuntimeWarning, match="pageable"):
        tensor.apply_writes(ROWS, 1, VALUES)
    tensor.apply_writes(np.array([1]), 0, np.array([3], np.int32))
    assert (_got(world, tensor) == _due((1, 0, 3))).all()
