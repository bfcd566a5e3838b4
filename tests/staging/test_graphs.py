"""Slots held for graphs: a fixed address, and publishes that wait for the last replay."""

from __future__ import annotations

import contextlib
import gc
import pickle

import numpy as np
import pytest
import torch
from conftest import BACKENDS, IN_PLACE, LATE, World
from replays import Graph, hold

import staging

NUM_SCHEDULES = 50
SIMS = [name for name in LATE if name.startswith("sim")]


def _replays(world):
    """Publish and replay for some steps without waiting; what the replays read that was not due."""
    pool, held = hold(world)
    graph, reads = Graph(world, held.tensor), []
    for step in range(1, 8):
        held.publish([step, -step])
        reads.append((graph.replay(), [step, -step]))
        world.read(pool.copy_to_uva([step * 100]))
    wrong = [(read(), due) for read, due in reads if read() != due]
    held.release()
    return wrong


def _schedules(make_world, backend, **options):
    if backend.startswith("sim"):
        return (
            make_world(backend, seed=s, schedule="random" if s else "late", **options) for s in range(NUM_SCHEDULES)
        )
    return (make_world(backend, **options) for _ in range(2))


@pytest.mark.parametrize("backend", LATE)
def test_each_replay_reads_what_was_published_before_it(make_world, backend):
    for world in _schedules(make_world, backend):
        assert _replays(world) == []


@pytest.mark.parametrize("backend", LATE)
def test_without_a_guard_replays_read_later_publishes(make_world, backend):
    assert any(_replays(world) for world in _schedules(make_world, backend, guard="trust"))


@pytest.mark.parametrize("backend", IN_PLACE)
def test_a_publish_waits_for_a_replay_that_is_still_queued(make_world, backend):
    world = make_world(backend)
    _, held = hold(world)
    graph = Graph(world, held.tensor)
    held.publish([1, 2])
    read = graph.replay()
    waits = world.manager.stats()["waits"]
    held.publish([3, 4])
    assert world.manager.stats()["waits"] == waits + 1
    assert read() == [1, 2]
    assert graph.replay()() == [3, 4]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_address_stays_while_the_pool_goes_on(make_world, backend):
    world = make_world(backend)
    pool, held = hold(world)
    address = held.tensor.data_ptr()
    seen = []
    for step in range(6):
        published = held.publish([step])
        assert (published.data_ptr(), published.shape, held.tensor.shape) == (address, (1,), (2,))
        seen.append((world.read(published), step))
        assert world.read(pool.copy_to_uva([step] * (2 + step)))().tolist() == [step] * (2 + step)
        assert pool.copy_to_uva([9]).data_ptr() != address
        assert held.tensor.data_ptr() == address
    assert all(read().tolist() == [step] for read, step in seen)


def test_what_was_published_stays_until_the_handles_first_publish(world):
    pool = staging.UvaBufferPool(3, torch.float32, 2, manager=world.manager)
    pool.copy_to_uva([1.5, 2.5, 3.5])
    held = pool.hold_for_graph()
    for _ in range(5):
        pool.copy_to_uva([9, 9, 9])
    assert world.read(held.tensor)().tolist() == [1.5, 2.5, 3.5]
    assert world.read(held.publish(np.float64(0.5) * np.arange(2)))().tolist() == [0, 0.5]
    assert world.read(held.tensor)().tolist() == [0, 0.5, 3.5]


def test_values_that_do_not_fit_are_refused_and_change_nothing(world):
    pool = staging.UvaBufferPool((2, 3), torch.int32, 2, name="tables", manager=world.manager)
    pool.copy_to_uva([[1, 2, 3]])
    held = pool.hold_for_graph()
    with pytest.raises(ValueError, match=r"5 rows for a held slot of 2 of pool 'tables', which cannot grow"):
        held.publish(np.zeros((5, 3), np.int32))
    for bad, error in [([[1, 2]], ValueError), ([[1, 2, 2**31]], OverflowError), ([[0.5] * 3], TypeError)]:
        with pytest.raises(error):
            held.publish(bad)
    assert world.read(held.tensor)().tolist() == [[1, 2, 3], [0, 0, 0]]
    assert held.publish([]).shape == (0, 3)


def test_rows_never_published_are_zeros_in_memory_that_was_used_before(world):
    used = [torch.full((64, 64), 7, dtype=torch.int32, device=world.device) for _ in range(8)]
    used.clear()  # what an allocator gives out next
    pool = staging.UvaBufferPool((64, 64), torch.int32, 2, manager=world.manager)
    pool.copy_to_uva(np.ones((1, 64), np.int32))
    held = pool.hold_for_graph()
    assert world.read(held.tensor)().sum() == 64


def test_a_slot_of_a_grown_pool_keeps_its_rows(world):
    pool = staging.UvaBufferPool(2, torch.int32, 2, manager=world.manager)
    pool.copy_to_uva(range(5))
    held = pool.hold_for_graph()
    assert len(held.tensor) == 8
    assert world.read(held.publish(range(8)))().tolist() == list(range(8))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_replacement_over_the_budget_changes_nothing(make_world, backend):
    world = make_world(backend, limit_bytes=3 * 1024)
    pool = staging.UvaBufferPool(256, torch.int32, 2, name="large", manager=world.manager)
    other = staging.UvaBufferPool(256, torch.int32, 1, manager=world.manager)
    lease = pool.lease([1, 2])
    before = world.manager.stats()["slots_current"]
    with pytest.raises(staging.MemoryLimitError, match=r"for 'large' would pass limit_bytes=3072"):
        pool.hold_for_graph()
    assert (world.manager.stats()["slots_current"], pool.num_slots) == (before, 2)
    assert pool.current.index == lease.slot
    assert world.read(pool.copy_to_uva([3]))().tolist() == [3]
    del other
    world.settle()
    world.manager.reclaim()
    world.manager.reclaim()
    held = pool.hold_for_graph()
    assert world.read(held.tensor)()[:2].tolist() == [3, 0]
    held.release()


def test_there_must_be_something_to_hold(world):
    pool = staging.UvaBufferPool(2, torch.int32, 2, name="empty", manager=world.manager)
    with pytest.raises(staging.StagingError, match="'empty' has no current slot to hold: publish"):
        pool.hold_for_graph()
    pool.copy_to_uva([1])
    first = pool.hold_for_graph()
    with pytest.raises(staging.StagingError, match="no current slot"):
        pool.hold_for_graph()
    pool.copy_to_uva([2])
    second = pool.hold_for_graph()
    first.publish([3])
    assert (world.read(first.tensor)()[0], world.read(second.tensor)()[0]) == (3, 2)
    assert pool.num_slots == 2


@pytest.mark.parametrize("size", [4, 30_000])
def test_a_backed_tensors_own_pool_holds_nothing_and_says_what_does(world, size):
    tensor = staging.UvaBackedTensor(size, torch.int32, manager=world.manager)
    with pytest.raises(staging.StagingError, match=r"a UvaBackedTensor's own.*make a UvaBufferPool"):
        tensor.pool.hold_for_graph()
    tensor.np[:] = 7
    pool = staging.UvaBufferPool(size, torch.int32, manager=world.manager)
    pool.copy_to_uva(tensor.np)
    held = pool.hold_for_graph()
    tensor.np[:] = 8
    assert (world.read(held.publish(tensor.np))() == 8).all()


@pytest.mark.parametrize("backend", IN_PLACE)
def test_guard_raise_raises_until_the_replay_is_done(make_world, backend):
    world = make_world(backend)
    _, held = hold(world, guard="raise", name="mine")
    graph = Graph(world, held.tensor)
    held.publish([1, 2])
    read = graph.replay()
    with pytest.raises(staging.SlotInUseError, match=r"held slot 1 of pool 'mine' \(published in step \d\) is still"):
        held.publish([3, 4])
    assert read() == [1, 2]
    for _ in range(10_000):  # the fence lies behind the read: a busy device may need a moment more
        with contextlib.suppress(staging.SlotInUseError):
            held.publish([3, 4])
            break
    assert graph.replay()() == [3, 4]


@pytest.mark.parametrize("backend", IN_PLACE)
def test_guard_grow_cannot_move_so_it_waits(make_world, backend):
    world = make_world(backend, guard="grow")
    pool, held = hold(world)
    reads = [(world.read(held.publish([step, step])), step) for step in range(5)]
    assert all(read().tolist() == [step] * 2 for read, step in reads)
    assert world.manager.stats()["waits"] >= 4
    assert pool.num_slots == 2


@pytest.mark.parametrize("backend", SIMS)
def test_a_retry_after_a_time_limit_still_waits_for_every_stream(make_world, backend):
    world = make_world(backend, wait_timeout_s=0.001)
    _, held = hold(world)
    side, never = world.sim.stream("side"), world.sim.stream("never")
    gate = _Gate(world.sim)
    world.sim.order(gate, stream=never)
    held.publish([1, 2])
    with world.sim.use(side):
        read = world.read(held.tensor, never)
        held.retire(never)
        if backend == "sim":
            with pytest.raises(staging.SlotInUseError, match="stream never"):
                held.publish([3, 4])
    if backend == "sim":
        with pytest.raises(staging.SlotInUseError, match="stream never"):
            held.publish([3, 4])
    gate.open = True
    held.publish([3, 4])
    assert read().tolist() == [1, 2]
    assert world.read(held.tensor)().tolist() == [3, 4]


class _Gate(staging.backends.sim.SimFence):
    def __init__(self, device):
        super().__init__(device, device.stream("gate"))
        self.open = False

    def done(self):
        return self.open


@pytest.mark.parametrize("backend", SIMS)
def test_a_fence_of_an_earlier_step_does_not_hide_a_later_one(make_world, backend):
    for seed in range(NUM_SCHEDULES):
        world = make_world(backend, seed=seed, schedule="random")
        side = world.sim.stream("side")
        _, held = hold(world)
        reads = []
        for step in range(1, 6):
            held.publish([step, step])
            world.sim.order(world.sim.record(), stream=side)
            reads.append((world.read(held.tensor, side), step))
            (held if step % 2 else world.manager).retire(side)
        assert all(read().tolist() == [step] * 2 for read, step in reads)
        held.release()


def test_releasing_ends_the_handle_and_again_is_fine(world):
    pool, held = hold(world, name="gone")
    kept = held.publish([5, 6])
    slots = world.manager.stats()["slots_current"]
    held.release()
    held.release()
    assert world.manager.stats()["slots_current"] == slots - 1
    for call in (lambda: held.publish([1]), lambda: held.tensor, lambda: held.retire(None)):
        with pytest.raises(staging.StagingError, match="'gone' was released"):
            call()
    for step in range(4):
        pool.copy_to_uva([step])
    assert world.read(kept)().tolist() == [5, 6]  # live views keep their memory


@pytest.mark.parametrize("how", ["release", "drop"])
def test_memory_given_up_is_freed_behind_a_fence(make_world, how):
    world = make_world("sim")
    pool, held = hold(world)
    before = world.manager.stats()["allocated_bytes_current"]
    world.read(held.tensor)
    if how == "release":
        held.release()
    del held
    gc.collect()
    pool.copy_to_uva([1])
    pool.copy_to_uva([1])
    assert world.manager.stats()["allocated_bytes_current"] == before
    world.settle()
    pool.copy_to_uva([1])
    assert world.manager.stats()["allocated_bytes_current"] == before - 8


def test_a_held_slot_outlives_its_pool(world):
    pool, held = hold(world)
    del pool
    gc.collect()
    other = staging.UvaBufferPool(2, torch.int32, 2, manager=world.manager)
    for step in range(5):
        other.copy_to_uva([step])
        assert world.read(held.publish([step, step]))().tolist() == [step, step]


def test_close_is_refused_while_a_slot_is_held(make_world):
    for backend in BACKENDS:
        world = make_world(backend)
        pool, held = hold(world, name="decode")
        with pytest.raises(staging.StagingError, match=r"slots of 'decode' are held for graphs: call release\(\)"):
            world.manager.close()
        assert world.read(pool.copy_to_uva([4]))().tolist() == [4]
        assert world.read(held.publish([5]))().tolist() == [5]
        world.settle()
        held.release()
        world.manager.close()
        with pytest.raises(staging.ClosedError):
            pool.copy_to_uva([1])


def test_close_is_not_held_up_by_a_dropped_handle_nor_by_a_lost_device(make_world, monkeypatch):
    world = make_world("cpu")
    pool, held = hold(world)
    del held
    world.manager.close()
    lost = make_world("cpu")
    pool, held = hold(lost)
    monkeypatch.setattr(lost.manager.backend, "is_device_error", lambda error: True)
    monkeypatch.setattr(lost.manager.backend, "publish", _fault)
    with pytest.raises(staging.DeviceLostError):
        held.publish([1])
    with pytest.raises(staging.DeviceLostError):
        pool.hold_for_graph()
    lost.manager.close()
    held.release()


def _fault(*args):
    raise RuntimeError("an illegal memory access")


def test_a_handle_does_not_pickle_nor_reenter(world):
    _, held = hold(world)
    with pytest.raises(TypeError, match="HeldSlot holds memory"):
        pickle.dumps(held)

    def values():
        yield 1
        held.publish([2])

    with pytest.raises(staging.ConcurrentUseError, match=r"HeldSlot\.publish"):
        held.publish(values())
    assert isinstance(world, World)
    assert world.read(held.publish([3]))().tolist() == [3]
