"""The lease patterns of rule 4: each is a function of a Play, and publishes and reads as an engine may."""

from __future__ import annotations

import torch

import staging

STEPS = range(1, 9)


def one_after_another(play):
    pool = play.pool()
    for step in STEPS:
        play.launch(pool.copy_to_uva([step] * 2), step)
        play.tick()


def in_step_blocks(play):
    pool = play.pool(depth=1)
    for step in STEPS:
        with play.manager.step():
            play.launch(pool.copy_to_uva([step] * 2), step)
        play.tick()


def between_step_ends(play):
    pools = [play.pool() for _ in range(2)]
    for step in STEPS:
        for pool in pools:
            play.launch(pool.copy_to_uva([step] * 2), step)
        play.end_step()


def many_publishes_of_a_step(play):
    pool = play.pool()
    for step in STEPS[:5]:
        with play.manager.step():
            handles = [pool.copy_to_uva([10 * step + part] * 2) for part in range(3)]
            for part, handle in enumerate(handles):
                play.launch(handle, 10 * step + part)
        play.tick()


def one_publish_for_many_steps(play):
    lasting, busy = play.pool(), play.pool()
    for era in STEPS[:3]:
        handle = lasting.copy_to_uva([era] * 2)
        for step in STEPS[:4]:
            play.launch(busy.copy_to_uva([step] * 2), step)
            play.launch(handle, era)
            play.end_step()
        play.launch(handle, era)  # in the step that publishes next, before and after that
        lasting.copy_to_uva([-1, -1])
        play.launch(handle, era)


def old_then_new(play):
    pool = play.pool(depth=1)
    handle = pool.copy_to_uva([0, 0])
    for step in STEPS:
        with play.manager.step():
            play.launch(handle, step - 1)
            handle = pool.copy_to_uva([step] * 2)
            play.launch(handle, step)
        play.tick()


def side_stream_by_manager(play):
    pool = play.pool()
    for step in STEPS:
        play.launch(pool.copy_to_uva([step] * 2), step, side=True)
        if play.told:
            play.manager.retire(play.side())
        play.tick()


def side_stream_by_step(play):
    pool = play.pool()
    for step in STEPS:
        with play.manager.step(streams=[play.side()] if play.told else []):
            play.launch(pool.copy_to_uva([step] * 2), step, side=True)
        play.tick()


def side_stream_by_lease(play):
    pool = play.pool()
    for step in STEPS:
        lease = pool.lease([step] * 2)
        play.launch(lease.tensor, step, side=True)
        play.launch(lease.tensor, step)
        if play.told:
            lease.retire(play.side())
        play.tick()


def side_stream_of_many_steps(play):
    pool, busy = play.pool(depth=1), play.pool(depth=1)
    for era in STEPS:
        handle = pool.copy_to_uva([era] * 2)
        play.launch(handle, era, side=True)
        if play.told:
            play.manager.retire(play.side())  # the lease ends steps later, and waits for this all the same
        for step in range(era % 2 + 1):
            play.launch(busy.copy_to_uva([step] * 2), step)
            play.end_step()


def growth(play):
    pool = play.pool(size=1)
    for step in STEPS:
        play.launch(pool.copy_to_uva([step] * (5 * step)), step)
        play.tick()


def growth_in_steps(play):
    pool = play.pool(size=1, depth=1)
    for step in STEPS:
        with play.manager.step():
            for part in range(2):
                play.launch(pool.copy_to_uva([step] * (3 * step + part)), step)
        play.tick()


def guard_raise(play):
    pool = play.pool(guard=None if play.manager.guard == "trust" else "raise")
    for step in STEPS:
        play.launch(_retried(play, lambda step=step: pool.copy_to_uva([step] * 2)), step)
        play.tick()


def guard_grow(play):
    pool = play.pool(guard=None if play.manager.guard == "trust" else "grow")
    for step in STEPS:
        play.launch(pool.copy_to_uva([step] * (2 + step % 3)), step)
        play.tick()
    assert play.manager.stats()["waits"] == 0


def guard_trust(play):
    pool = play.pool(guard="trust")
    for step in STEPS:
        if play.waits and step % 2:
            play.settle()  # the caller knows that two slots are enough
        play.launch(pool.copy_to_uva([step] * 2), step)
        play.tick()


def dropped_pools(play):
    for step in STEPS:
        pool = play.pool(size=100)
        for part in range(2):
            play.launch(pool.copy_to_uva([step] * (90 + part)), step)
        del pool
        _publish_elsewhere(play)


def dropped_pools_in_steps(play):
    for step in STEPS:
        with play.manager.step(streams=[play.side()]):
            pool = play.pool(size=100)
            lease = pool.lease([step] * 90)
            play.launch(lease.tensor, step, side=True)
            play.launch(lease.tensor, step)
            del pool, lease
            _publish_elsewhere(play)
        _publish_elsewhere(play)


def dropped_tensors(play):
    for step in STEPS[:3]:
        for size in (100, 17_000):  # one of a group, one that publishes alone
            tensor = staging.UvaBackedTensor(size, torch.int32, manager=play.manager)
            tensor.np[:] = step
            play.launch(tensor.copy_to_uva(64), step)
            del tensor
        _publish_elsewhere(play)


def dropped_buffers(play):
    for step in STEPS:
        for kind in (staging.UvaBuffer, staging.NonUvaBuffer):
            buffer = kind(64, torch.int32, manager=play.manager)
            buffer.np[:] = step
            play.launch(buffer.uva(), step)
            del buffer
        _publish_elsewhere(play)


def dropped_staged_tensors(play):
    for step in STEPS[:4]:
        tensor = staging.StagedWriteTensor(64, torch.int32, play.device, 1, True, manager=play.manager)
        for value in (-step, step):
            tensor.stage_write(0, 0, [value] * 64)
            tensor.apply_write()
            play.launch(tensor.gpu, value)
        del tensor
        _publish_elsewhere(play)


def unchanged_publishes(play):
    tensor = staging.UvaBackedTensor(64, torch.int32, 1, tracking="caller", manager=play.manager)
    for step in STEPS[:5]:
        tensor.np[:] = step
        tensor.mark_dirty()
        for _ in range(3):
            play.launch(tensor.copy_to_uva(), step)  # the first publishes, the others keep its slot
            play.end_step()


def unchanged_publishes_together(play):
    tensors = [staging.UvaBackedTensor(8, torch.int32, 1, manager=play.manager) for _ in range(3)]
    for step in STEPS[:5]:
        tensors[step % 3].np[:] = step
        for _ in range(2):
            play.manager.publish()
            for tensor in tensors:
                play.launch(tensor.gpu, int(tensor.np[0]))
            play.end_step()


def published_alone_and_together(play):
    tensors = [staging.UvaBackedTensor(8, torch.int32, 1, manager=play.manager) for _ in range(2)]
    for step in STEPS:
        for tensor in tensors:
            tensor.np[:] = step
        play.launch(tensors[step % 2].copy_to_uva(), step)
        play.launch(tensors[1 - step % 2].gpu, step - 1)
        play.manager.publish()
        for tensor in tensors:
            play.launch(tensor.gpu, step)
        play.end_step()


def retried_after_guard_raise(play):
    guard = None if play.manager.guard == "trust" else "raise"
    tensor = staging.UvaBackedTensor(20_000, torch.int32, 1, guard=guard, manager=play.manager)
    for step in STEPS:
        tensor.np[:] = step
        play.launch(_retried(play, lambda: tensor.copy_to_uva(16)), step)
        play.tick()


def held_slot(play):
    pool = play.pool()
    play.launch(pool.copy_to_uva([0, 0]), 0)
    held = pool.hold_for_graph()
    for step in STEPS:
        held.publish([step] * 2)
        play.launch(held.tensor, step)
        play.launch(pool.copy_to_uva([-step] * 2), -step)
        play.tick()
    held.release()


def held_slot_read_elsewhere(play):
    pool = play.pool()
    lease = pool.lease([0, 0])
    play.launch(lease.tensor, 0, side=True)
    if play.told:
        lease.retire(play.side())
    held = pool.hold_for_graph()
    for step in STEPS:
        held.publish([step] * 2)
        play.launch(held.tensor, step, side=True)
        if play.told:
            (held if step % 2 else play.manager).retire(play.side())
        play.tick()
    held.release()


def held_slots_released(play):
    for step in STEPS:
        pool = play.pool(size=100)
        pool.copy_to_uva([0])
        held = pool.hold_for_graph()
        play.launch(held.publish([step] * 100), step)
        if step % 2:
            held.release()
        del held, pool
        _publish_elsewhere(play)


def _publish_elsewhere(play):
    """What sweeps retired memory; twice, so that it is freed if it may be."""
    for _ in range(2):
        play.pool(size=1, depth=1).copy_to_uva([1])
    play.tick()


def _retried(play, publish):
    for _ in range(100_000):
        try:
            return publish()
        except staging.SlotInUseError:
            play.proceed()
    raise AssertionError("the slot was never free")


REUSES = [
    one_after_another,
    in_step_blocks,
    between_step_ends,
    many_publishes_of_a_step,
    one_publish_for_many_steps,
    old_then_new,
    guard_raise,
    guard_grow,
    unchanged_publishes,
    unchanged_publishes_together,
    published_alone_and_together,
    retried_after_guard_raise,
    held_slot,
    growth,
    growth_in_steps,
]
"""Slots are used again."""

LASTING = [one_publish_for_many_steps, old_then_new, unchanged_publishes, unchanged_publishes_together]
"""A publish is read in later steps than its own."""

ELSEWHERE = [
    side_stream_by_manager,
    side_stream_by_step,
    side_stream_by_lease,
    side_stream_of_many_steps,
    held_slot_read_elsewhere,
]
"""Readers are on another stream."""

DROPS = [
    dropped_pools,
    dropped_pools_in_steps,
    dropped_tensors,
    dropped_staged_tensors,
    dropped_buffers,
    held_slots_released,
]
"""Memory is given up."""

PATTERNS = [*REUSES, *ELSEWHERE, *DROPS, guard_trust]
