"""While a stream captures a graph: what would ruin it is refused before it touches the device, the rest goes on."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from conftest import BACKENDS, LATE
from replays import Graph, hold

import staging
from staging.backends.sim import SimBackend, SimDevice

CUDA = [name for name in BACKENDS if name.startswith("cuda")]
SIMS = [name for name in LATE if name.startswith("sim")]


def _calls(world):
    """Everything that would rotate, grow, query, fence or allocate, by name, and the pool whose rotation it turns."""
    manager = world.manager
    pool, held = hold(world, rows=2)
    lease = pool.lease([1, 2])
    tensor = staging.StagedWriteTensor(4, torch.int32, world.device, manager=manager)
    writer = staging.FusedStagedWriter(world.device, 4, manager=manager)
    buffer = staging.UvaBuffer(2, torch.int32, manager=manager)
    backed = staging.UvaBackedTensor(4, torch.int32, manager=manager)
    alone = staging.UvaBackedTensor(20_000, torch.int32, manager=manager)
    changed = staging.UvaBackedTensor(4, torch.int32, manager=manager)
    manager.publish()
    changed.np[:] = 1
    side = world.stream()
    tensor.stage_write_elem(0, 1)
    calls = {
        "copy_to_uva": lambda: pool.copy_to_uva([1, 2]),
        "copy_to_uva, growing": lambda: pool.copy_to_uva(range(50)),
        "lease": lambda: pool.lease([1, 2]),
        "copy_to_gpu": lambda: pool.copy_to_gpu([1, 2]),
        "hold_for_graph": pool.hold_for_graph,
        "held.publish": lambda: held.publish([1, 2]),
        "held.retire": lambda: held.retire(side),
        "lease.retire": lambda: lease.retire(side),
        "apply_write": tensor.apply_write,
        "stage_write, large": lambda: _large(world).stage_write(0, 0, np.zeros(1 << 17, np.int32)),
        "apply": lambda: writer.apply([tensor]),
        "uva": buffer.uva,
        "copy_to_uva of a changed tensor": changed.copy_to_uva,
        "copy_to_uva of an unchanged tensor": alone.copy_to_uva,
        "copy_to_uva of a group's part": backed.copy_to_uva,
        "publish": manager.publish,
        "step": lambda: _step(manager),
        "end_step": manager.end_step,
        "retire": lambda: manager.retire(side),
        "close": manager.close,
        "async_tensor_h2d": lambda: staging.async_tensor_h2d([1, 2], manager=manager),
    }
    for kind in (staging.UvaBufferPool, staging.UvaBackedTensor, staging.UvaBuffer, staging.NonUvaBuffer):
        calls[kind.__name__] = lambda kind=kind: kind(2, torch.int32, manager=manager)
    calls["StagedWriteTensor"] = lambda: staging.StagedWriteTensor(4, torch.int32, world.device, manager=manager)
    calls["DeviceMemoryManager"] = lambda: staging.DeviceMemoryManager(world.device, backend=_again(world))
    return calls, pool, held


def _step(manager):
    with manager.step():
        pass


def _error(call):
    try:
        call()
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _large(world):
    if not hasattr(world, "large"):
        world.large = staging.StagedWriteTensor((2, 1 << 17), torch.int32, world.device, manager=world.manager)
    return world.large


def _again(world):
    return world.manager.backend if world.sim is not None else world.name


@pytest.mark.parametrize("backend", LATE)
def test_whatever_a_capture_forbids_is_refused_and_the_graph_stays_whole(make_world, backend):
    world = make_world(backend)
    calls, pool, held = _calls(world)
    _large(world)
    before = pool.current, pool.num_slots, world.manager.stats()
    said = {}
    graph = Graph(world, held.tensor, lambda: said.update((name, _error(call)) for name, call in calls.items()))
    assert [name for name, text in said.items() if "StagingError: a stream is capturing a graph" not in text] == []
    assert (pool.current, pool.num_slots, world.manager.stats()) == before
    held.publish([3, 4])
    assert graph.replay()() == [3, 4]
    with world.manager.step():
        calls["copy_to_uva"]()
        calls["publish"]()
        calls["apply_write"]()
    held.release()


@pytest.mark.parametrize("backend", SIMS)
def test_unrefused_each_of_them_ruins_the_graph(make_world, backend, monkeypatch):
    unharmed = []
    with monkeypatch.context() as patch:
        patch.setattr(SimBackend, "is_capturing", lambda self, stream=None: False)
        for name in _calls(make_world(backend))[0]:
            world = make_world(backend)
            _large(world)
            calls, _, held = _calls(world)
            if name == "close":
                held.release()
            with world.sim.capture() as graph:
                _error(calls[name])
                if not graph.ruined_by:
                    unharmed.append(name)
                graph.ruined_by = ""
            held.release()
    assert unharmed == []


@pytest.mark.parametrize("backend", LATE)
def test_staging_on_the_host_goes_on_while_capturing(make_world, backend):
    world = make_world(backend)
    _, held = hold(world)
    tensor = staging.StagedWriteTensor(4, torch.int32, world.device, manager=world.manager)

    def within():
        tensor.stage_write(0, 1, [5, 6])
        tensor.stage_write_elem(0, 4)
        tensor.stage_writes([0], 3, [7])
        gone = staging.FusedStagedWriter(world.device, 4, manager=world.manager)
        assert world.manager.stats()["slots_current"]
        assert world.manager.explain()
        del gone
        gc.collect()

    graph = Graph(world, held.tensor, within)
    tensor.apply_write()
    assert world.read(tensor.gpu)().tolist() == [4, 5, 6, 7]
    assert graph.replay()() == [0, 0]
    held.release()


@pytest.mark.parametrize("backend", LATE)
def test_a_step_left_while_capturing_stays_open_for_the_next_end(make_world, backend):
    world = make_world(backend)
    pool = staging.UvaBufferPool(2, torch.int32, 1, manager=world.manager)
    _, held = hold(world)
    step, reads = world.manager.step(), []
    step.__enter__()
    reads.append((world.read(pool.copy_to_uva([0, 0])), 0))

    def within():
        with pytest.raises(staging.StagingError, match="capturing"):
            step.__exit__(None, None, None)

    Graph(world, held.tensor, within)
    reads.append((world.read(pool.copy_to_uva([1, 1])), 1))
    world.manager.end_step()
    for value in range(2, 6):
        with world.manager.step():
            reads.append((world.read(pool.copy_to_uva([value] * 2)), value))
    assert all(read().tolist() == [due] * 2 for read, due in reads)
    assert pool.num_slots <= 3
    held.release()


@pytest.mark.parametrize("backend", SIMS)
def test_a_stream_that_captures_cannot_be_told_of(make_world, backend):
    world = make_world(backend)
    pool, held = hold(world)
    lease, side = pool.lease([1, 2]), world.sim.stream("side")
    with world.sim.use(side), world.sim.capture() as graph:
        world.sim.enqueue(lambda: None)
        with world.sim.use(world.sim.stream()):
            for call in (lease.retire, held.retire, world.manager.retire):
                with pytest.raises(staging.StagingError, match="capturing"):
                    call(side)
    assert not graph.ruined_by
    held.release()


@pytest.mark.skipif(not CUDA, reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("backend", CUDA)
def test_a_side_stream_that_captures_is_found_as_well(make_world, backend):
    world = make_world(backend)
    side, out = torch.cuda.Stream(), torch.zeros(2, device=world.device)
    out.add_(0)  # warm-up
    torch.cuda.synchronize()
    assert not world.manager.backend.is_capturing()
    assert not world.manager.backend.is_capturing(side)
    graph, main = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    with torch.cuda.graph(graph, stream=side):
        out.add_(1)
        assert world.manager.backend.is_capturing()
        with torch.cuda.stream(main):
            assert world.manager.backend.is_capturing(side)
            assert not world.manager.backend.is_capturing()
            with pytest.raises(staging.StagingError, match="capturing"):
                world.manager.retire(side)
    graph.replay()
    assert out.tolist() == [1, 1]


def test_a_device_found_lost_when_asked_for_its_capture_is_recognised():
    class Fragile(SimBackend):
        is_lost = False

        def is_capturing(self, stream=None):
            if self.is_lost:
                raise RuntimeError("an illegal memory access")
            return False

        def is_device_error(self, error):
            return "illegal" in str(error)

    def fresh():
        manager = staging.DeviceMemoryManager("cpu", backend=Fragile(SimDevice()))
        pool = staging.UvaBufferPool(1, torch.int32, 1, manager=manager)
        lease = pool.lease([1])
        held = pool.hold_for_graph()
        calls = [
            lambda: staging.UvaBuffer(1, torch.int32, manager=manager),
            lambda: staging.StagedWriteTensor(1, torch.int32, "cpu", manager=manager),
            lambda: staging.async_tensor_h2d([1], manager=manager),
            lambda: pool.copy_to_uva([1]),
            lambda: held.publish([1]),
            lambda: lease.retire(None),
            lambda: manager.retire(None),
            lambda: _step(manager),
            manager.end_step,
        ]
        return manager, calls

    for index in range(len(fresh()[1])):
        manager, calls = fresh()
        manager.backend.is_lost = True
        with pytest.raises(staging.DeviceLostError, match="illegal"):
            calls[index]()
        with pytest.raises(staging.DeviceLostError, match="lost earlier"):
            manager.check()
        manager.close()


def test_the_virtual_device_records_replays_and_is_ruined_as_a_real_one():
    sim, seen = SimDevice(schedule="late"), []
    side = sim.stream("side")
    with sim.capture() as graph:
        sim.enqueue(lambda: seen.append("captured"))
        sim.enqueue(lambda: seen.append("queued"), stream=side)
        assert (sim.is_capturing(), sim.is_capturing(side)) == (True, False)
    sim.synchronize()
    assert seen == ["queued"]
    for _ in range(2):
        graph.replay()
    sim.synchronize()
    assert seen[1:] == ["captured"] * 2
    fence = sim.record()
    for forbidden in (sim.record, fence.done, sim.synchronize, lambda: sim.order(fence), _captured(sim)):
        with (
            pytest.raises(RuntimeError, match="the graph is ruined: there was"),
            sim.capture(),
            pytest.raises(RuntimeError, match="not permitted while a stream is capturing"),
        ):
            forbidden()
    assert not sim.is_capturing()


def _captured(sim):
    return lambda: sim.capture().__enter__()
