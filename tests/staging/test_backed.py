"""Backed tensors: what counts as changed, and what a publish may and may not hand over."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

from staging import SlotInUseError, UvaBackedTensor

TRACKINGS = ["compare", "caller"]


def _marked(tensor, rows=None):
    if tensor.tracking == "caller":
        tensor.mark_dirty(rows)


@pytest.mark.parametrize("tracking", TRACKINGS)
def test_each_publish_reads_as_it_was_made(world, tracking):
    tensor = UvaBackedTensor(6, torch.int64, 2, tracking=tracking, manager=world.manager)
    reads = [(world.read(tensor.gpu), 0)]
    for step in range(1, 15):
        tensor.np[step % 6] = step
        _marked(tensor, step % 6)
        reads.append((world.read(tensor.copy_to_uva()), step))
    for read, step in reads:
        due = np.zeros(6, np.int64)
        for earlier in range(1, step + 1):
            due[earlier % 6] = earlier
        assert (read() == due).all()


@pytest.mark.parametrize("tracking", TRACKINGS)
def test_unchanged_contents_keep_their_slot(world, tracking):
    tensor = UvaBackedTensor((4, 3), torch.float32, tracking=tracking, manager=world.manager)
    tensor.cpu.fill_(2.5)
    _marked(tensor)
    first = tensor.copy_to_uva()
    assert tensor.copy_to_uva().data_ptr() == first.data_ptr()
    assert tensor.copy_to_uva(2).data_ptr() == first.data_ptr()
    assert tensor.gpu.shape == (2, 3)


@pytest.mark.parametrize("tracking", TRACKINGS)
def test_a_longer_prefix_adds_the_missing_rows_to_the_slot(world, tracking):
    tensor = UvaBackedTensor(10, torch.int32, tracking=tracking, manager=world.manager)
    tensor.np[:] = np.arange(10)
    _marked(tensor)
    short = tensor.copy_to_uva(5)
    reader = world.read(short)
    tensor.np[7] = 70
    _marked(tensor, 7)
    long = tensor.copy_to_uva(10)
    assert long.data_ptr() == short.data_ptr()
    assert world.read(long)().tolist() == [0, 1, 2, 3, 4, 5, 6, 70, 8, 9]
    assert reader().tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("tracking", TRACKINGS)
def test_a_change_beyond_the_prefix_waits_for_its_own_publish(world, tracking):
    tensor = UvaBackedTensor(8, torch.int32, tracking=tracking, manager=world.manager)
    tensor.np[6] = 1
    _marked(tensor, slice(6, 7))
    before = tensor.gpu.data_ptr()
    assert tensor.copy_to_uva(4).data_ptr() == before
    assert world.read(tensor.copy_to_uva())().tolist() == [0] * 6 + [1, 0]
    assert tensor.gpu.data_ptr() != before


def test_comparing_finds_a_nan_and_a_negative_zero(world):
    tensor = UvaBackedTensor(2, torch.float32, manager=world.manager)
    tensor.np[:] = [np.nan, -0.0]
    bits = world.read(tensor.copy_to_uva())().view(np.uint32)
    assert bits.tolist() == [0x7FC00000, 0x80000000]
    before = tensor.gpu.data_ptr()
    assert tensor.copy_to_uva().data_ptr() == before  # the same NaN is no change


def test_the_host_side_never_aliases_a_slot(world):
    tensor = UvaBackedTensor(3, torch.int32, manager=world.manager)
    tensor.np[:] = 1
    handle = tensor.copy_to_uva()
    tensor.np[:] = 2
    assert world.read(handle)().tolist() == [1, 1, 1]


@pytest.mark.parametrize("tracking", TRACKINGS)
@pytest.mark.parametrize("rows", [4, 70_000])
def test_the_manager_publishes_what_changed(world, tracking, rows):
    tensors = [UvaBackedTensor(rows, torch.int32, tracking=tracking, manager=world.manager) for _ in range(3)]
    world.manager.publish()
    before = [tensor.gpu.data_ptr() for tensor in tensors]
    world.manager.publish()
    assert [tensor.gpu.data_ptr() for tensor in tensors] == before
    reads = []
    for step in range(1, 9):
        tensors[step % 3].np[step % 4] = step
        _marked(tensors[step % 3], step % 4)
        world.manager.publish()
        reads += [(world.read(tensor.gpu), tensor.np.copy()) for tensor in tensors]
    assert all((read() == due).all() for read, due in reads)


@pytest.mark.parametrize("tracking", TRACKINGS)
def test_publishing_alone_and_together_can_be_mixed(world, tracking):
    tensors = [UvaBackedTensor(5, torch.int64, 2, tracking=tracking, manager=world.manager) for _ in range(3)]
    rng, reads = np.random.default_rng(6), []
    for step in range(60):
        tensor = tensors[rng.integers(3)]
        if rng.integers(3):
            tensor.np[rng.integers(5)] = step
            _marked(tensor)
        if rng.integers(2):
            world.manager.publish()
            reads += [(world.read(t.gpu), t.np.copy()) for t in tensors]
        else:
            n = int(rng.integers(6))
            reads.append((world.read(tensor.copy_to_uva(n)), tensor.np[:n].copy()))
    assert all((read() == due).all() for read, due in reads)


@pytest.mark.parametrize("tracking", TRACKINGS)
def test_readers_in_steps_see_what_was_published_together(world, tracking):
    tensors = [UvaBackedTensor(5, torch.int32, 2, tracking=tracking, manager=world.manager) for _ in range(4)]
    reads = []
    for step in range(1, 15):
        with world.manager.step():
            for tensor in tensors[: step % 4]:
                tensor.np[:] = step
                _marked(tensor)
            old = [(world.read(tensor.gpu), tensor.gpu) for tensor in tensors]
            world.manager.publish()
            reads += [(world.read(tensor.gpu), tensor.np.copy()) for tensor in tensors]
            reads += [(world.read(handle), None) for _, handle in old]  # launched after it was replaced, in its step
    assert all((read() == due).all() for read, due in reads if due is not None)


def test_a_group_goes_with_its_last_tensor_and_a_part_is_never_given_twice(world):
    first = UvaBackedTensor(8, torch.int32, manager=world.manager)
    kept, host = UvaBackedTensor(8, torch.int32, manager=world.manager), first.np
    host[:] = 1
    del first
    second = UvaBackedTensor(8, torch.int32, manager=world.manager)
    second.np[:] = 2
    assert host.tolist() == [1] * 8
    assert len(list(world.manager.published.groups())) == 1
    del kept, second
    gc.collect()
    assert list(world.manager.published.groups()) == []


def test_bad_calls_name_value_and_limit(world):
    tensor = UvaBackedTensor(4, torch.int32, tracking="caller", manager=world.manager)
    with pytest.raises(ValueError, match=r"n=5.* 4 rows"):
        tensor.copy_to_uva(5)
    for rows in ({2: 0}.keys(), np.array([False, True, False, False]), np.int64(3), []):
        tensor.mark_dirty(rows)
    with pytest.raises(TypeError, match="integer"):
        tensor.copy_to_uva(2.0)
    with pytest.raises(IndexError, match="indices from 0 to 3"):
        tensor.mark_dirty(4)
    with pytest.raises(ValueError, match="finds changes itself"):
        UvaBackedTensor(4, torch.int32, manager=world.manager).mark_dirty()
    with pytest.raises(ValueError, match="'guess'"):
        UvaBackedTensor(4, torch.int32, tracking="guess", manager=world.manager)


def test_a_publish_refused_by_the_guard_does_not_touch_the_slot_that_is_read(make_world):
    world = make_world("sim", guard="raise")
    tensor = UvaBackedTensor(20_000, torch.int32, 1, manager=world.manager)
    reads = []
    for value in (1, 2):
        tensor.np[:] = value
        reads.append((world.read(tensor.copy_to_uva()), value))
    tensor.np[:] = 3
    for _ in range(3):  # each retry finds the next slot in use
        with pytest.raises(SlotInUseError):
            tensor.copy_to_uva()
    assert all((read() == value).all() for read, value in reads)
    assert (world.read(tensor.copy_to_uva())() == 3).all()


def test_a_publish_that_failed_after_a_common_one_hands_over_no_old_contents(make_world, monkeypatch):
    world = make_world("sim_twin")
    tensor = UvaBackedTensor(4, torch.int32, 1, manager=world.manager)
    tensor.np[:] = 1
    world.manager.publish()
    tensor.np[:] = 2
    with monkeypatch.context() as patch:
        patch.setattr(world.manager.backend, "publish", _refuse)
        with pytest.raises(RuntimeError, match="refused"):
            tensor.copy_to_uva()
    assert world.read(tensor.copy_to_uva())().tolist() == [2] * 4


def _refuse(*args):
    raise RuntimeError("refused")
