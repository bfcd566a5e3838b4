"""The manager: which backend and why, budgets, lifetime, threads, and what importing it costs."""

from __future__ import annotations

import functools
import gc
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from conftest import BACKENDS

import staging
from staging import backends


def _run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_needs_neither_triton_nor_ray_nor_a_context():
    code = (
        "import sys, staging, torch;"
        "print([m for m in ('triton', 'ray') if m in sys.modules], torch.cuda.is_initialized())"
    )
    assert _run_python(code) == "[] False"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = staging.no_such_name


def test_the_folder_is_the_list_of_backends():
    assert backends.names() == ["cpu", "cuda_copy", "cuda_uva", "sim"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_auto_takes_the_cpu_and_says_why():
    manager = staging.DeviceMemoryManager()
    assert manager.backend.name == "cpu"
    text = manager.explain()
    assert "cuda_uva: not taken: this torch was built without CUDA" in text
    assert "cpu: proved" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("backend", ["auto", "cuda_uva"])
def test_a_cuda_device_asked_for_never_falls_back(backend):
    with pytest.raises(
        staging.BackendUnavailableError, match=r"no backend proved itself on device cuda(.|\n)*cuda_uva"
    ):
        staging.DeviceMemoryManager("cuda", backend=backend)


def test_a_backend_that_fails_its_probe_is_not_taken(monkeypatch):
    from staging.backends import cpu

    honest = cpu.CpuBackend.allocate

    def snapshot(self, nbytes, *, mapped=True, pinned=True):
        block = honest(self, nbytes, mapped=mapped, pinned=pinned)
        block.device = block.host.clone()  # an "alias" that later writes do not reach
        return block

    monkeypatch.setattr(cpu.CpuBackend, "allocate", snapshot)
    with pytest.raises(staging.BackendUnavailableError, match="wrote 7, read 0"):
        staging.DeviceMemoryManager("cpu", backend="cpu")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"backend": "gpu"}, "'gpu' is unknown; choose one of: auto, cpu"),
        ({"guard": "hope"}, "'hope': choose one of wait"),
        ({"growth": 1}, "growth=1"),
        ({"growth": "fast"}, "growth='fast'"),
        ({"depth": 0}, "depth=0"),
        ({"on_limit": "ignore"}, "on_limit='ignore'"),
    ],
)
def test_bad_options_are_named(options, text):
    with pytest.raises(ValueError, match=text):
        staging.DeviceMemoryManager("cpu", **options)


def test_depth_is_the_argument_else_the_managers_else_the_default(make_world):
    plain, deep = make_world("cpu").manager, make_world("cpu", depth=5).manager
    staging.set_default_max_concurrency(4)
    try:
        depths = [
            staging.UvaBufferPool(1, torch.int32, argument, manager=manager).max_concurrency
            for argument, manager in [(3, deep), (None, deep), (None, plain)]
        ]
        staging.set_default_max_concurrency(1)
        depths.append(staging.UvaBufferPool(1, torch.int32, manager=plain).max_concurrency)
    finally:
        staging.set_default_max_concurrency(2)
    assert depths == [3, 5, 4, 2]
    with pytest.raises(ValueError, match="max_concurrency=0"):
        staging.UvaBufferPool(1, torch.int32, 0, manager=plain)


def test_the_default_manager_is_one_per_device_and_can_be_set():
    assert staging.default_manager("cpu") is staging.default_manager(torch.device("cpu"))
    mine = staging.DeviceMemoryManager("cpu", backend="sim")
    before = staging.default_manager("cpu")
    staging.set_default_manager(mine)
    try:
        assert staging.UvaBufferPool(1, torch.int32).manager is mine
        assert staging.StagedWriteTensor(1, torch.int32, "cpu").manager is mine
    finally:
        staging.set_default_manager(before)


@pytest.mark.parametrize("backend", BACKENDS)
def test_growth_past_the_budget_raises_and_changes_nothing(make_world, backend):
    world = make_world(backend, limit_bytes=4096)
    pool = staging.UvaBufferPool(64, torch.int32, 2, manager=world.manager)
    pool.copy_to_uva(np.arange(64))
    with pytest.raises(staging.MemoryLimitError, match="limit_bytes=4096"):
        pool.copy_to_uva(np.zeros(5000, np.int32))
    assert world.read(pool.copy_to_uva([1, 2]))().tolist() == [1, 2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_at_the_limit_pageable_memory_goes_on_with_one_warning(make_world, backend):
    world = make_world(backend, limit_bytes=1024, on_limit="pageable")
    with pytest.warns(RuntimeWarning, match="pageable") as caught:
        pool = staging.UvaBufferPool(512, torch.int32, 2, manager=world.manager)
    assert len(caught) == 1
    reads = [(world.read(pool.copy_to_uva(np.full(512, step))), step) for step in range(6)]
    assert all((read() == step).all() for read, step in reads)
    assert "was reached" in world.manager.explain()


@pytest.mark.parametrize("backend", BACKENDS)
def test_everything_dropped_is_given_back(make_world, backend):
    world = make_world(backend)
    for _ in range(3):
        things = [
            staging.UvaBuffer((3, 5), torch.float16, manager=world.manager),
            staging.NonUvaBuffer(7, torch.int8, manager=world.manager),
            staging.UvaBackedTensor(9, torch.bool, manager=world.manager),
            staging.StagedWriteTensor((4, 4), torch.int32, world.device, None, True, manager=world.manager),
            staging.FusedStagedWriter(world.device, 8, manager=world.manager),
        ]
        things[3].stage_write(0, 0, [1])
        things[4].apply([things[3]])
        del things
        gc.collect()
        world.manager.end_step()
        world.settle()
        world.manager.end_step()
        stats = world.manager.stats()
        assert [stats[f"{kind}_current"] for kind in ("requested_bytes", "pinned_bytes", "device_bytes", "slots")] == [
            0
        ] * 4


@pytest.mark.parametrize("kind", [staging.UvaBuffer, staging.NonUvaBuffer])
def test_a_buffer_publishes_what_its_numpy_face_holds(world, kind):
    buffer = kind((4, 2), torch.int16, manager=world.manager)
    buffer.np[:] = np.arange(8).reshape(4, 2)
    assert world.read(buffer.uva(2))().tolist() == [[0, 1], [2, 3]]
    buffer.cpu[3, 1] = -1
    assert world.read(buffer.uva())()[3].tolist() == [6, -1]
    with pytest.raises(ValueError, match="n=5"):
        buffer.uva(5)


def test_transfers_never_alias_and_convert_exactly(world):
    mine = np.arange(6, dtype=np.int32).reshape(2, 3)
    moved = staging.async_tensor_h2d(mine, manager=world.manager)
    mine[:] = -1
    out = torch.zeros(3, dtype=torch.float32, device=world.device)
    assert staging.async_tensor_h2d([1.5, 2, 3], out=out, manager=world.manager) is out
    world.settle()
    assert moved.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert out.tolist() == [1.5, 2, 3]
    with pytest.raises(OverflowError):
        staging.async_tensor_h2d([300], dtype=torch.int8, manager=world.manager)
    with pytest.raises(ValueError, match=r"out is \(3,\)"):
        staging.async_tensor_h2d([1.0], out=out, manager=world.manager)


def test_a_call_inside_a_call_is_refused_and_stages_nothing(world):
    tensor = staging.StagedWriteTensor(8, torch.int32, world.device, manager=world.manager)

    def values():
        yield 1
        tensor.stage_write(4, 0, [2])

    with pytest.raises(staging.ConcurrentUseError, match="stage_write"):
        tensor.stage_write(0, 0, values())
    tensor.stage_write(1, 0, [3])
    tensor.apply_write()
    assert world.read(tensor.gpu)().tolist() == [0, 3] + [0] * 6


def test_objects_may_be_handed_to_another_thread_but_steps_may_not(make_world):
    world = make_world("cpu")
    pool, caught = staging.UvaBufferPool(1, torch.int32, manager=world.manager), []
    with world.manager.step():
        pool.copy_to_uva([1])

    def work():
        caught.append(pool.copy_to_uva([2]).tolist())
        try:
            world.manager.end_step()
        except staging.ConcurrentUseError as error:
            caught.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert caught[0] == [2]
    assert "belong to the thread" in caught[1]


def test_use_after_close_raises_and_closing_again_is_fine(world):
    pool = staging.UvaBufferPool(1, torch.int32, manager=world.manager)
    tensor = staging.StagedWriteTensor(2, torch.int32, world.device, manager=world.manager)
    view = pool.copy_to_uva([5])
    tensor.stage_write_elem(0, 1)
    world.settle()
    world.manager.close()
    world.manager.close()
    calls = [
        functools.partial(pool.copy_to_uva, [1]),
        tensor.apply_write,
        world.manager.end_step,
        world.manager.publish,
    ]
    for call in calls:
        with pytest.raises(staging.ClosedError, match="was closed"):
            call()
    assert view.tolist() == [5]  # live views keep their memory
    del pool, tensor, calls, call
    gc.collect()
    assert world.manager.stats()["allocated_bytes_current"] == 0


def test_nothing_pickles_and_the_error_says_what_to_do(world):
    pool = staging.UvaBufferPool(1, torch.int32, manager=world.manager)
    for thing in (pool, world.manager):
        with pytest.raises(TypeError, match="does not pickle"):
            pickle.dumps(thing)


def test_use_in_a_forked_child_raises():
    code = (
        "import os, torch, staging\n"
        "pool = staging.UvaBufferPool(1, torch.int32)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try: pool.copy_to_uva([1])\n"
        "    except staging.ClosedError as error: print(error, flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)"
    )
    assert "forked process" in _run_python(code)
    assert os.getpid()


def test_a_lost_device_is_said_so_from_then_on(make_world, monkeypatch):
    world = make_world("cpu")
    tensor = staging.StagedWriteTensor(2, torch.int32, "cpu", manager=world.manager)
    tensor.stage_write_elem(0, 1)

    def fault(*args):
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(world.manager.backend, "apply_elements", fault)
    monkeypatch.setattr(world.manager.backend, "is_device_error", lambda error: True)
    with pytest.raises(staging.DeviceLostError, match="illegal memory access"):
        tensor.apply_write()
    with pytest.raises(staging.DeviceLostError) as second:
        staging.UvaBufferPool(1, torch.int32, manager=world.manager)
    assert isinstance(second.value.__cause__, RuntimeError)
    world.manager.close()


def _named(world, name):
    """One of each kind that holds memory."""
    manager, given = world.manager, {} if name is None else {"name": name}
    tensor = staging.StagedWriteTensor((4, 4), torch.int32, world.device, None, True, manager=manager, **given)
    writer = staging.FusedStagedWriter(world.device, 8, manager=manager, **given)
    tensor.stage_write(0, 0, [1])
    writer.apply([tensor])
    pool = staging.UvaBufferPool(4, torch.int32, 3, manager=manager, **given)
    pool.copy_to_uva(range(9))
    return [
        tensor,
        writer,
        pool,
        staging.UvaBackedTensor(20_000, torch.int32, manager=manager, **given),
        staging.UvaBuffer(3, torch.float16, manager=manager, **given),
        staging.NonUvaBuffer(7, torch.int8, manager=manager, **given),
    ]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [None, "mine"])
def test_statistics_by_name_add_up_to_those_of_all(make_world, backend, name):
    world = make_world(backend)
    things = _named(world, name)
    stats = world.manager.stats()
    kinds = {type(thing).__name__ for thing in things}
    assert set(stats["names"]) == (kinds if name is None else {"mine"})
    for kind in ("allocated_bytes", "pinned_bytes", "device_bytes", "slots"):
        assert sum(share[kind] for share in stats["names"].values()) == stats[f"{kind}_current"], kind
    for kind in ("growths", "waits", "wait_ns"):
        assert sum(share[kind] for share in stats["names"].values()) == stats[kind], kind
    assert all(isinstance(figure, int) for key, figure in stats.items() if key != "names")
    if name is None:
        share = stats["names"]["UvaBufferPool"]
        assert (share["slots"], share["growths"]) == (3, 1)
        assert share["allocated_bytes"] in (96, 112)  # the slot that grew may be freed, or not yet
    del things
    gc.collect()
    for _ in range(2):
        world.manager.end_step()
        world.settle()
    assert all(not any(list(share.values())[:4]) for share in world.manager.stats()["names"].values())


def test_statistics_tell_whose_readers_were_waited_for(make_world):
    world = make_world("sim")
    slow, quick = (staging.UvaBufferPool(1, torch.int32, 1, name=name, manager=world.manager) for name in "sq")
    for step in range(5):
        world.read(slow.copy_to_uva([step]))
    for step in range(2):
        quick.copy_to_uva([step])
    names = world.manager.stats()["names"]
    assert (names["s"]["waits"], names["q"]["waits"]) == (world.manager.stats()["waits"], 0)
    assert names["s"]["waits"] >= 3
    assert names["s"]["wait_ns"] > names["q"]["wait_ns"] == 0


def test_small_backed_tensors_share_memory_that_goes_by_their_class(make_world):
    world = make_world("cpu")
    tensor = staging.UvaBackedTensor(4, torch.int32, 2, name="lengths", manager=world.manager)
    names = world.manager.stats()["names"]
    assert (tensor.name, names["lengths"]["allocated_bytes"]) == ("lengths", 32)
    assert names["UvaBackedTensor"]["slots"] == 2


def test_errors_say_whose_memory_it_is(make_world):
    world = make_world("sim", guard="raise", limit_bytes=64)
    pool = staging.UvaBufferPool(2, torch.int32, 1, name="tokens", manager=world.manager)
    for step in range(2):
        world.read(pool.copy_to_uva([step]))
    with pytest.raises(staging.SlotInUseError, match=r"a pool of 2 named 'tokens'"):
        pool.copy_to_uva([2])
    with pytest.raises(staging.MemoryLimitError, match=r"400 bytes more .* for 'table' would pass limit_bytes=64"):
        staging.UvaBuffer(100, torch.int32, name="table", manager=world.manager)
