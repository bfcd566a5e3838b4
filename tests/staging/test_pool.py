"""Slots, leases, guards and growth: what protects a late reader, and that nothing less would."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from conftest import BACKENDS, IN_PLACE

import staging
from staging import SlotInUseError, UvaBufferPool


def _run(world, pool, num_steps, rows=lambda step: 4):
    """Publish and read for some steps without ever waiting for a reader; what was read and what was due."""
    reads = []
    for step in range(num_steps):
        values = np.full(rows(step), step, np.int32)
        reads.append((world.read(pool.copy_to_uva(values)), values))
    return [(read(), due) for read, due in reads]


@pytest.mark.parametrize("depth", [1, 2, 3, 7])
def test_slot_is_not_reused_before_its_reader_finishes(world, depth):
    pool = UvaBufferPool(4, torch.int32, depth, manager=world.manager)
    assert all((seen == due).all() for seen, due in _run(world, pool, 25))


@pytest.mark.parametrize("backend", IN_PLACE)
def test_the_same_script_without_a_guard_reads_later_steps(make_world, backend):
    world = make_world(backend, guard="trust")
    pool = UvaBufferPool(4, torch.int32, 2, manager=world.manager)
    assert any((seen != due).any() for seen, due in _run(world, pool, 25))


@pytest.mark.parametrize("backend", BACKENDS)
def test_growth_under_queued_readers_keeps_what_they_read(make_world, backend):
    world = make_world(backend)
    pool = UvaBufferPool(1, torch.int32, 2, manager=world.manager)
    assert all((seen == due).all() for seen, due in _run(world, pool, 20, rows=lambda step: 1 + step * 3))
    assert world.manager.stats()["growths"] >= 5


@pytest.mark.parametrize(("growth", "rows"), [("pow2", 8), ("exact", 5), (1.5, 6)])
def test_growth_policy_decides_the_new_size(make_world, growth, rows):
    world = make_world("cpu", growth=growth)
    pool = UvaBufferPool((4, 3), torch.int16, 2, manager=world.manager)
    before = world.manager.stats()["allocated_bytes_current"]
    pool.copy_to_uva(np.zeros((5, 3), np.int16))
    gc.collect()
    pool.copy_to_uva(np.zeros((1, 3), np.int16))
    pool.copy_to_uva(np.zeros((1, 3), np.int16))
    assert world.manager.stats()["allocated_bytes_current"] - before == (rows - 4) * 6


def test_first_publish_takes_slot_1_and_rotation_goes_on_from_there(make_world):
    pool = UvaBufferPool(2, torch.int32, 3, manager=make_world("cpu").manager)
    assert [pool.lease([1]).slot for _ in range(5)] == [1, 2, 0, 1, 2]


@pytest.mark.parametrize("backend", IN_PLACE)
def test_guard_raise_leaves_the_rotation_for_a_retry(make_world, backend):
    world = make_world(backend, guard="raise")
    pool = UvaBufferPool(2, torch.int32, 1, manager=world.manager)
    reads = [world.read(pool.copy_to_uva([step, step])) for step in range(2)]
    with pytest.raises(SlotInUseError, match=r"slot \d of a pool of 2 .* still read"):
        pool.copy_to_uva([9, 9])
    world.settle()
    assert pool.copy_to_uva([9, 9]).tolist() == [9, 9]
    assert [read().tolist() for read in reads] == [[0, 0], [1, 1]]


@pytest.mark.parametrize("backend", IN_PLACE)
def test_guard_grow_takes_fresh_slots_and_never_waits(make_world, backend):
    world = make_world(backend, guard="grow")
    pool = UvaBufferPool(4, torch.int32, 2, manager=world.manager)
    assert all((seen == due).all() for seen, due in _run(world, pool, 6))
    assert pool.num_slots > 3  # more than a waiting guard would ever own
    assert world.manager.stats()["waits"] == 0


@pytest.mark.parametrize("backend", IN_PLACE)
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_depth_steps_in_flight_never_wait(make_world, backend, depth):
    world = make_world(backend)
    pool = UvaBufferPool(4, torch.int32, depth, manager=world.manager)
    for start in range(0, 12, depth):  # each batch of readers is done before its slots come up again
        for step in range(start, start + depth):
            world.read(pool.copy_to_uva([step]))
        world.settle()
    assert world.manager.stats()["waits"] == 0
    assert pool.num_slots <= depth + 1


@pytest.mark.parametrize("backend", IN_PLACE)
def test_wait_limit_names_slot_step_and_stream(make_world, backend):
    world = make_world(backend, wait_timeout_s=0.0005)
    if world.sim is not None:
        never = world.sim.stream("never")
        world.sim.order(_Undone(), stream=never)
        tensor = UvaBufferPool(1, torch.int32, 1, manager=world.manager)
        lease = tensor.lease([1])
        world.read(lease.tensor, never)
        lease.retire(never)
        tensor.copy_to_uva([2])
        with pytest.raises(SlotInUseError, match=r"slot 0 .*step 0.*stream never after wait_timeout_s"):
            tensor.copy_to_uva([3])
        never.queue.clear()
        never.num_run = never.num_queued
        return
    pool = UvaBufferPool(1, torch.int32, 1, manager=world.manager)
    with pytest.raises(SlotInUseError, match="is still read on stream"):
        _run(world, pool, 8)


class _Undone(staging.backends.sim.SimFence):
    def __init__(self):
        pass

    def done(self):
        return False


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_publishes_of_a_step_may_be_read_until_its_end(make_world, backend):
    world = make_world(backend)
    pool = UvaBufferPool(2, torch.int32, 2, manager=world.manager)
    for step in range(5):
        with world.manager.step():
            handles = [pool.copy_to_uva([step * 10 + i] * 2) for i in range(4)]
            reads = [world.read(handle) for handle in handles]
    assert [read().tolist() for read in reads] == [[40 + i] * 2 for i in range(4)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_publish_may_be_read_for_many_steps(make_world, backend):
    world = make_world(backend)
    lasting = UvaBufferPool(2, torch.int32, 2, manager=world.manager)
    busy = UvaBufferPool(2, torch.int32, 2, manager=world.manager)
    reads = []
    handle = lasting.copy_to_uva([7, 8])
    for step in range(10):
        with world.manager.step():
            busy.copy_to_uva([step, step])
            reads.append(world.read(handle))
    with world.manager.step():
        late = world.read(handle)  # launched in the step that publishes next, after that publish
        lasting.copy_to_uva([1, 2])
        lasting.copy_to_uva([3, 4])
    assert all(read().tolist() == [7, 8] for read in [*reads, late])


@pytest.mark.parametrize("backend", BACKENDS)
def test_read_old_publish_read_new(make_world, backend):
    world = make_world(backend)
    pool = UvaBufferPool(1, torch.int64, 2, manager=world.manager)
    reads, handle = [], pool.copy_to_uva([0])
    for step in range(1, 12):
        with world.manager.step():
            reads.append((world.read(handle), step - 1))
            handle = pool.copy_to_uva([step])
            reads.append((world.read(handle), step))
    assert all(read()[0] == due for read, due in reads)


@pytest.mark.parametrize("backend", IN_PLACE)
@pytest.mark.parametrize("how", ["lease", "manager", "step", "nobody"])
def test_readers_of_another_stream_are_protected_once_told(make_world, backend, how):
    world = make_world(backend)
    pool, side = UvaBufferPool(1, torch.int64, 2, manager=world.manager), world.stream()
    reads = []
    for step in range(12):
        lease = pool.lease([step])
        reads.append((world.read(lease.tensor, side), step))
        if how == "lease":
            lease.retire(side)
        elif how == "manager":
            world.manager.retire(side)
        elif how == "step":
            world.manager.end_step(streams=[side])
        else:
            world.manager.end_step()
    right = [read()[0] == due for read, due in reads]
    assert all(right) if how != "nobody" else not all(right)


@pytest.mark.parametrize("backend", IN_PLACE)
def test_a_step_left_by_an_exception_is_fenced_all_the_same(make_world, backend):
    world = make_world(backend)
    pool, reads = UvaBufferPool(1, torch.int64, 2, manager=world.manager), []

    def fail(step):
        with world.manager.step():
            reads.append((world.read(pool.copy_to_uva([step])), step))
            raise KeyError

    for step in range(8):
        with pytest.raises(KeyError):
            fail(step)
    assert all(read()[0] == due for read, due in reads)


def test_steps_do_not_nest(make_world):
    manager = make_world("cpu").manager
    with manager.step(), pytest.raises(staging.StagingError, match="inside another step"), manager.step():
        pass


def test_dropped_memory_is_freed_after_its_readers_and_no_sooner(make_world):
    world = make_world("sim")
    other = UvaBufferPool(1, torch.uint8, 1, manager=world.manager)
    pool = UvaBufferPool(2, torch.int32, 1, manager=world.manager)
    other.copy_to_uva([1])
    before = world.manager.stats()["allocated_bytes_current"]
    world.read(pool.copy_to_uva([1, 2]))
    del pool
    gc.collect()
    other.copy_to_uva([1])  # fences what was dropped
    assert world.manager.stats()["allocated_bytes_current"] >= before
    world.settle()
    other.copy_to_uva([1])  # finds the fence done
    assert world.manager.stats()["allocated_bytes_current"] == before - 8 + 1  # a slot more of `other`


def test_copy_to_gpu_never_aliases_a_slot(world):
    pool = UvaBufferPool(3, torch.float32, 2, manager=world.manager)
    kept = [pool.copy_to_gpu(np.full(3, step, np.float32)) for step in range(9)]
    out = torch.zeros(3, dtype=torch.float32, device=world.device)
    assert pool.copy_to_gpu([5, 6, 7], out) is out
    world.settle()
    assert [int(t[0]) for t in kept] == list(range(9))
    assert out.tolist() == [5, 6, 7]


def test_published_values_do_not_alias_the_callers_memory(world):
    pool = UvaBufferPool(3, torch.int32, 2, manager=world.manager)
    mine = np.array([1, 2, 3], np.int32)
    handle = pool.copy_to_uva(mine)
    mine[:] = 9
    assert world.read(handle)().tolist() == [1, 2, 3]


def test_rows_that_do_not_fit_are_refused_without_rotating(world):
    pool = UvaBufferPool((2, 3), torch.int32, 2, manager=world.manager)
    first = pool.lease([[1, 2, 3]])
    for bad, error in [
        ([[1, 2]], ValueError),
        (5, ValueError),
        ([[1, 2, 2**31]], OverflowError),
        ([[0.5] * 3], TypeError),
    ]:
        with pytest.raises(error):
            pool.copy_to_uva(bad)
    assert pool.lease([[4, 5, 6]]).slot == (first.slot + 1) % 2
    assert pool.copy_to_uva([]).shape == (0, 3)


def test_a_lease_that_is_over_cannot_be_retired(make_world):
    pool = UvaBufferPool(1, torch.int32, 1, manager=make_world("cpu").manager)
    lease = pool.lease([1])
    for _ in range(2):
        pool.copy_to_uva([2])
    with pytest.raises(ValueError, match="is over"):
        lease.retire(None)
