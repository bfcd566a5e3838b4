"""Comparisons on a real GPU: every case runs on both sides, leaves the same bits, and stays alive under run-ahead."""

import time

import pytest
import torch
from cells import spec
from targets.faults import PLAIN_GPU

import staging
from rig import registry
from rig.client import Client
from rig.controls import defaults
from rig.loading import loaded
from rig.scenarios._serving import Loop
from rig.scenarios.engine_step import step_plans
from rig.target import Target
from rig.worker import Worker

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
DEVICE = torch.device("cuda", 0)
HOT = registry.load("scenarios", "hot_path")


@pytest.fixture
def clients():
    with loaded(spec("plain", PLAIN_GPU), device=DEVICE) as module:
        manager = staging.DeviceMemoryManager(DEVICE, backend="cuda_uva")
        ours = Client(Target(staging, device=DEVICE, manager=manager), name="staging")
        yield Client(Target(module, device=DEVICE), name="plain"), ours
        ours.close()


def run(scenario, baseline, **params):
    asked = {"id": "a", "scenario": scenario, "target": "staging", "backend": "cuda_uva", "mode": "measure"}
    asked |= {"params": defaults(scenario) | params, "seat": "s0", "seed": 3, "timeout_s": 300.0, "limits": {}}
    target = spec("staging") | {"baseline": baseline}
    return list(Worker(seat="s0", device="cuda:0", seed=7).run(asked, target))[-1]


@pytest.mark.parametrize("case", [name for name in HOT.CASES if not name.startswith(("numpy_", "copy_"))])
def test_both_sides_of_a_case_leave_the_same_bits_on_the_device(case, clients):
    held = []
    for client in clients:
        given = defaults("hot_path") | {"rounds": 1, "round_ms": 0.01}
        (bout,) = HOT.bouts(given | {"cases": [case]}, seed=5, on_gpu=True, own=True)
        bout.build(client).round()
        names = [name for name in client.target.objects if name != "writer"]
        held.append({name: client.words(name).tobytes() for name in names})
    assert held[0] == held[1]


def test_both_engines_leave_the_same_bits_on_the_device(clients):
    params = defaults("engine_step") | {"gpu_ms": 0.5, "max_model_len": 2048, "rounds": 2}
    plans = step_plans(params, seed=3, num=100)
    held = []
    for client in clients:
        loop = Loop(client, params, plans)
        loop.warm_up()
        loop.round()
        held.append({name: client.words(name) for name in (*loop.engine.staged, *loop.engine.published)})
    for name, words in held[0].items():
        assert words.tobytes() == held[1][name].tobytes(), name


def test_every_case_of_the_seat_is_compared():
    body = run("hot_path", spec("plain", PLAIN_GPU), rounds=2, round_ms=0.1)
    assert (body["verdict"], body["reason"]) == ("PASS", "")
    told = body["comparison"]
    assert set(told["ratios"]) == {name for name in HOT.CASES if not name.startswith("numpy_")}
    pinned = told["pinned_bytes"]["tokens_array"]
    assert pinned["target"] >= 131_072 * 4
    assert pinned["manager"] >= 131_072 * 4


def test_engine_loop_is_compared_at_each_length_of_device_work():
    for gpu_ms in (0, 0.2):
        body = run("engine_step", spec("plain", PLAIN_GPU), gpu_ms=gpu_ms, rounds=2, max_model_len=2048)
        assert (body["verdict"], body["reason"]) == ("PASS", "")
        assert body["comparison"]["ratios"]["steps"]["target_ns"] >= gpu_ms * 0.5e6


def test_a_mark_is_reached_only_after_what_was_queued_before_it():
    from rig.device import mark, spin, synchronize

    spin(DEVICE, us=10)  # measures the clock
    synchronize(DEVICE)
    begin = time.perf_counter()
    spin(DEVICE, us=20_000)
    wait = mark(DEVICE)
    queued_s = time.perf_counter() - begin
    wait()
    assert time.perf_counter() - begin > 0.01
    assert queued_s < 0.01, "queued, not waited for"


def test_pinned_bytes_are_counted_as_torch_takes_them_from_the_driver():
    from rig.device import pinned_nbytes, reset_pinned_peak

    before = pinned_nbytes(peak=False)
    if before is None:
        pytest.skip("this torch does not count pinned memory")
    reset_pinned_peak()
    block = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)  # larger than any block that it may have kept
    assert pinned_nbytes(peak=True) - before >= block.nbytes
