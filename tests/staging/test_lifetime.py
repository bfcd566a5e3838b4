"""Memory that is dropped while work is queued on it, on whatever stream: it outlives that work, and no longer."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from conftest import TwinSim
from torch.multiprocessing.reductions import StorageWeakRef

import staging
from staging.backends.sim import SimBackend, SimDevice

SIMS = {"mapped": SimBackend, "twin": TwinSim}


class Device:
    """A late virtual device, its manager, and readers that keep nothing alive."""

    def __init__(self, kind="mapped", **options):
        self.sim = SimDevice(schedule="late")
        self.manager = staging.DeviceMemoryManager("cpu", backend=SIMS[kind](self.sim), **options)
        self.side = self.sim.stream("side")

    def read(self, tensor, stream=None):
        """Queue a reader; its list gets the values, or "freed" where nobody holds the memory any more."""
        storage, seen = tensor.untyped_storage(), []
        weak, count, dtype, offset = StorageWeakRef(storage), tensor.numel(), tensor.dtype, tensor.storage_offset()

        def run():
            held = torch.UntypedStorage._new_with_weak_ptr(weak.cdata)
            if held is None:
                seen.append("freed")
            else:
                seen.append(torch.empty(0, dtype=dtype).set_(held, offset, (count,)).tolist())

        self.sim.enqueue(run, stream=stream)
        return seen

    def publish_elsewhere(self):
        """What sweeps: a publish of another pool."""
        staging.UvaBufferPool(1, torch.uint8, 1, manager=self.manager).copy_to_uva([1])


@pytest.fixture
def device():
    return Device()


def _pool(device, size=2, depth=2):
    return staging.UvaBufferPool(size, torch.int32, depth, manager=device.manager)


def test_a_dropped_pool_waits_for_the_fences_of_its_ended_leases(device):
    pool = _pool(device)
    with device.manager.step(streams=[device.side]):
        seen = device.read(pool.copy_to_uva([1, 2]), device.side)
        pool.copy_to_uva([3, 4])
    with device.manager.step():
        pool.copy_to_uva([5, 6])
    del pool
    gc.collect()
    for _ in range(3):
        device.manager.end_step()
        device.publish_elsewhere()
    device.sim.synchronize()
    assert seen == [[1, 2]]


def test_a_stream_named_at_one_steps_end_counts_for_a_lease_that_ends_later(device):
    pool = _pool(device)
    with device.manager.step(streams=[device.side]):
        seen = device.read(pool.copy_to_uva([1, 2]), device.side)
    for step in range(4):
        with device.manager.step():
            pool.copy_to_uva([step, step])
    device.sim.synchronize()
    assert seen == [[1, 2]]


def test_a_dropped_tensor_waits_for_its_apply_on_another_stream(device):
    tensor = staging.StagedWriteTensor(1000, torch.int64, "cpu", manager=device.manager)
    with device.sim.use(device.side):
        tensor.stage_write(0, 0, range(1000))
        tensor.apply_write()
    before = device.manager.stats()
    del tensor
    gc.collect()
    device.publish_elsewhere()
    device.publish_elsewhere()
    after = device.manager.stats()
    assert after["device_bytes_current"] == before["device_bytes_current"]  # the target
    assert after["allocated_bytes_current"] >= 8 * 1000  # and the packed slot
    device.sim.synchronize()
    device.publish_elsewhere()
    assert device.manager.stats()["device_bytes_current"] == 0


@pytest.mark.parametrize("kind", SIMS)
def test_a_transfer_on_another_stream_keeps_its_source(kind):
    device = Device(kind)
    with device.sim.use(device.side):
        moved = staging.async_tensor_h2d(np.arange(500), manager=device.manager)
    held = device.manager.stats()["allocated_bytes_current"]
    device.publish_elsewhere()
    gc.collect()
    device.publish_elsewhere()
    assert device.manager.stats()["allocated_bytes_current"] >= held
    device.sim.synchronize()
    assert moved.tolist() == list(range(500))


def test_dropping_after_close_still_waits_for_a_lease_on_another_stream(device):
    pool = _pool(device)
    lease = pool.lease([1, 2])
    seen = device.read(lease.tensor, device.side)
    lease.retire(device.side)
    device.manager.close()
    del pool, lease
    gc.collect()
    device.manager.stats()
    device.sim.synchronize()
    assert seen == [[1, 2]]
    assert device.manager.stats()["allocated_bytes_current"] == 0


def test_memory_outlives_a_manager_that_is_dropped_with_its_pool(device):
    seen = device.read(_pool(device).copy_to_uva([1, 2]))
    left, device.manager = device.manager._retired, None
    gc.collect()
    assert left.has_any()
    other = Device()
    other.publish_elsewhere()
    device.sim.synchronize()
    assert seen == [[1, 2]]
    gc.collect()
    other.publish_elsewhere()  # whoever sweeps next frees what the other one left
    other.publish_elsewhere()
    assert not left.has_any()


def test_memory_left_on_a_lost_device_is_no_matter_of_other_managers(device):
    class Lost(SimBackend):
        def fence(self, stream=None):
            raise RuntimeError("an illegal memory access")

        def is_device_error(self, error):
            return "illegal" in str(error)

    lost = staging.DeviceMemoryManager("cpu", backend=Lost(SimDevice()))
    pool = staging.UvaBufferPool(1, torch.int32, 1, manager=lost)
    with pytest.raises(staging.DeviceLostError):
        lost.end_step()
    lost.close()
    del pool
    gc.collect()
    for _ in range(3):
        device.publish_elsewhere()
        device.manager.end_step()


def test_what_another_thread_drops_after_the_fence_waits_for_the_next_one(device):
    pools = [_pool(device), _pool(device)]
    late = []
    sweep, fence = device.manager._retired, device.manager.backend.fence

    def fence_and_drop(stream=None):
        made = fence(stream)
        if len(pools) == 1 and not late:  # as if another thread launched and dropped just now
            late.append(device.read(pools[0].copy_to_uva([7, 8])))
            pools.clear()
        return made

    del pools[0]
    device.manager.backend.fence = fence_and_drop
    device.publish_elsewhere()
    device.manager.backend.fence = fence
    assert sweep.has_any()
    device.sim.synchronize()
    assert late == [[[7, 8]]]


@pytest.mark.parametrize("tracking", ["compare", "caller"])
def test_a_skipped_publish_on_another_stream_waits_for_the_copy(tracking):
    device = Device("twin")
    tensor = staging.UvaBackedTensor(3, torch.int32, tracking=tracking, manager=device.manager)
    device.sim.synchronize()
    tensor.np[:] = 5
    if tracking == "caller":
        tensor.mark_dirty()
    with device.sim.use(device.side):
        tensor.copy_to_uva()
    seen = device.read(tensor.copy_to_uva())
    device.sim.synchronize()
    assert seen == [[5, 5, 5]]


def test_an_extension_on_another_stream_keeps_the_first_copys_source():
    device = Device("twin")
    tensor = staging.UvaBackedTensor(4, torch.int32, 1, tracking="caller", manager=device.manager)
    seen = []
    for value in range(1, 6):
        tensor.np[:] = value
        tensor.mark_dirty()
        with device.sim.use(device.side):
            seen.append((device.read(tensor.copy_to_uva(2)), [value] * 2))
        seen.append((device.read(tensor.copy_to_uva(4)), [value] * 4))
        device.manager.retire(device.side)
    device.sim.synchronize()
    assert all(got == [due] for got, due in seen)


def test_a_publish_that_failed_is_made_again(monkeypatch):
    device = Device("twin")
    tensor = staging.UvaBackedTensor(3, torch.int32, manager=device.manager)
    tensor.np[:] = 5
    with monkeypatch.context() as patch:
        patch.setattr(device.manager.backend, "publish", _refuse)
        with pytest.raises(RuntimeError, match="refused"):
            tensor.copy_to_uva()
    seen = device.read(tensor.copy_to_uva())
    device.sim.synchronize()
    assert seen == [[5, 5, 5]]


def _refuse(*args):
    raise RuntimeError("refused")


def test_a_launch_that_fails_after_work_was_queued_keeps_its_slot(device, monkeypatch):
    tensor = staging.StagedWriteTensor(4, torch.int32, "cpu", 1, manager=device.manager)
    honest = device.manager.backend.apply

    def half(*args):
        honest(*args)
        raise RuntimeError("after the launch")

    tensor.stage_write(0, 0, [1, 1, 1, 1])
    monkeypatch.setattr(device.manager.backend, "apply", half)
    with pytest.raises(RuntimeError, match="after the launch"):
        tensor.apply_write()
    seen = device.read(tensor.gpu)
    monkeypatch.setattr(device.manager.backend, "apply", honest)
    tensor.clear_staged_writes()
    for step in range(3):
        tensor.stage_write(0, 0, [5 + step])
        tensor.apply_write()
    device.sim.synchronize()
    assert seen == [[1, 1, 1, 1]]


def test_a_bad_stream_at_a_steps_end_leaves_the_steps_whole(device):
    pool = _pool(device)
    for call in (_end_badly, _leave_badly):
        with pytest.raises(AttributeError):
            call(device, pool)
    for step in range(6):
        with device.manager.step():
            pool.copy_to_uva([step, step])
        device.sim.synchronize()
    assert pool.num_slots <= 4


def _end_badly(device, pool):
    pool.copy_to_uva([0, 0])
    device.manager.end_step(streams=[object()])


def _leave_badly(device, pool):
    with device.manager.step(streams=[object()]):
        pool.copy_to_uva([0, 0])


@pytest.mark.parametrize("where", ["done", "copy", "fence"])
def test_a_device_lost_anywhere_is_recognised(device, monkeypatch, where):
    pool, backend = _pool(device), device.manager.backend
    calls = {
        "done": lambda: [device.read(pool.copy_to_uva([1, 2])) for _ in range(4)],
        "copy": lambda: pool.copy_to_gpu([1, 2]),
        "fence": lambda: device.manager.end_step(),
    }

    def lost(*args):
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(backend, "is_device_error", lambda error: "illegal" in str(error))
    if where == "done":
        monkeypatch.setattr(type(backend.fence()), "done", lost)
    else:
        monkeypatch.setattr(backend, where, lost)
    with pytest.raises(staging.DeviceLostError):
        calls[where]()
    with pytest.raises(staging.DeviceLostError, match="lost earlier"):
        pool.copy_to_uva([1, 2])
    device.manager.close()


def test_a_fused_apply_holds_its_tensors(device):
    tensor = staging.StagedWriteTensor(4, torch.int32, "cpu", manager=device.manager)
    writer = staging.FusedStagedWriter("cpu", 4, manager=device.manager)
    tensor.stage_write(3, 0, [9])

    def values():
        yield 1
        writer.apply([tensor])

    with pytest.raises(staging.ConcurrentUseError):
        tensor.stage_write(0, 0, values())
    writer.apply([tensor])
    device.sim.synchronize()
    assert tensor.gpu.tolist() == [0, 0, 0, 9]


def test_a_waiting_guard_waits_where_the_budget_has_no_room_for_one_slot_more():
    device = Device(limit_bytes=32)
    pool = staging.UvaBufferPool(4, torch.int32, 2, manager=device.manager)
    seen = [(device.read(pool.copy_to_uva([step] * 4)), step) for step in range(6)]
    device.sim.synchronize()
    assert all(got == [[step] * 4] for got, step in seen)
    assert device.manager.stats()["waits"] >= 3


def test_one_growth_allocates_once():
    device = Device(limit_bytes=16 + 16 + 512)
    pool = staging.UvaBufferPool(4, torch.int32, 2, manager=device.manager)
    for step in range(2):
        device.read(pool.copy_to_uva([step] * 4))
    assert len(pool.copy_to_uva(range(128))) == 128


def test_resident_host_memory_keeps_to_the_budget():
    class Mapped(SimBackend):
        def allocate_target(self, nbytes, *, resident=True):
            return super().allocate_target(nbytes) if resident else self.allocate(nbytes)

    manager = staging.DeviceMemoryManager("cpu", backend=Mapped(SimDevice()), limit_bytes=1000)
    with pytest.raises(staging.MemoryLimitError, match="limit_bytes=1000"):
        staging.StagedWriteTensor(4096, torch.int32, "cpu", None, True, manager=manager)
    manager = staging.DeviceMemoryManager("cpu", backend=Mapped(SimDevice()), limit_bytes=1000, on_limit="pageable")
    with pytest.warns(RuntimeWarning, match="limit_bytes=1000"):
        staging.StagedWriteTensor(4096, torch.int32, "cpu", None, True, manager=manager)


def test_tensors_are_published_in_the_order_they_were_made(device):
    tensors = [staging.UvaBackedTensor(70_000, torch.int32, manager=device.manager) for _ in range(6)]
    order = []
    for index, tensor in enumerate(tensors):
        tensor.copy_to_uva = lambda n=None, index=index: order.append(index)
    del tensors[2]
    gc.collect()
    device.manager.publish()
    assert order == [0, 1, 3, 4, 5]
    with pytest.raises(ValueError, match="another manager"):
        Device().manager.publish(tensors)


def test_a_given_backend_must_prove_itself_too():
    class Dead(SimBackend):
        def probe(self):
            return staging.backend.Probe("sim", False, "it is dead")

    with pytest.raises(staging.BackendUnavailableError, match="it is dead"):
        staging.DeviceMemoryManager("cpu", backend=Dead())


def test_statistics_survive_a_finalizer_that_runs_inside_them(device):
    pool = _pool(device)
    device.manager.close()
    holder = [pool]
    holder.append(holder)  # a cycle: freed by the collector, whenever it runs
    del pool, holder
    done = threading.Event()

    def work():
        with device.manager.accounting._lock:
            gc.collect()
        device.manager.stats()
        done.set()

    threading.Thread(target=work, daemon=True).start()
    assert done.wait(10)


def test_defaults_are_built_anew_after_close_and_after_fork():
    before = staging.default_manager("cpu")
    before.close()
    assert staging.UvaBufferPool(1, torch.int32).copy_to_uva([1]).tolist() == [1]
    code = (
        "import os, torch, staging\n"
        "staging.UvaBufferPool(1, torch.int32)\n"
        "if os.fork() == 0:\n"
        "    print(staging.UvaBufferPool(1, torch.int32).copy_to_uva([7]).tolist(), flush=True); os._exit(0)\n"
        "os.wait()"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert out.stdout.strip() == "[7]"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_cuda_device_asked_for_is_not_the_cpu_default():
    staging.UvaBufferPool(1, torch.int32)  # makes the default manager of no device in particular
    for device in ("cuda", "cuda:0"):
        with pytest.raises(staging.BackendUnavailableError):
            staging.StagedWriteTensor(4, torch.int32, device)
