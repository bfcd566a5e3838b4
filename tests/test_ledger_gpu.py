"""On a real GPU: the ledger hears the fences of the CUDA backends, and sees pinned memory that a target writes."""

import pytest
import torch
from cells import spec
from targets.faults import PLAIN_GPU, planted

from rig.controls import defaults
from rig.pointers import host_address
from rig.worker import Worker

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
BACKENDS = ("cuda_uva", "cuda_copy")
SCENARIOS = ("slot_reuse", "growth", "ragged_writes", "fused_apply")
QUEUED = {"in_flight": 6, "beyond_contract": True}


def run(scenario, target, backend="cuda_uva", **params):
    asked = {
        "id": "a",
        "scenario": scenario,
        "target": target["name"],
        "backend": backend,
        "mode": "verify",
        "params": defaults(scenario) | {"num_steps": 40} | params,
        "seat": "s0",
        "seed": 3,
        "timeout_s": 60.0,
        "limits": {},
        "ledger": True,
    }
    return list(Worker(seat="s0", device="cuda:0", seed=7).run(asked, target))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("streams", [1, 2])
def test_our_library_is_in_order_behind_stalled_readers(scenario, backend, streams):
    *found, body = run(scenario, spec("staging"), backend, streams=streams, in_flight=3)
    assert [finding["summary"] for finding in found] == []
    assert body["verdict"] == "PASS"
    assert "ledger_missing" not in body["coverage"]
    assert body["coverage"]["ledger_fence_edges"] > 0


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_correct_foreign_module_is_in_order(scenario):
    *found, body = run(scenario, spec("plain", PLAIN_GPU))
    assert [finding["summary"] for finding in found] == []
    assert body["coverage"]["ledger_fence_edges"] == 0
    assert "ledger_missing" not in body["coverage"]
    assert "ledger_unseen" not in body["coverage"]


@pytest.mark.parametrize("stall_us", [0, 1000])
def test_a_foreign_pool_one_step_early_is_found_stalled_or_not(stall_us):
    body = run("slot_reuse", spec("plain", planted("one_step_early", PLAIN_GPU)), stall_us=stall_us)[-1]
    assert body["verdict"] == "FAIL"
    assert "slot_reuse" in body["findings"]
    assert body["coverage"]["ledger_missing"] > 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stall_us", [0, 1000])
def test_a_pool_without_fences_is_found_stalled_or_not(backend, stall_us):
    body = run("slot_reuse", spec("faulty:unfenced_reuse"), backend, stall_us=stall_us, **QUEUED)[-1]
    assert "slot_reuse" in body["findings"]
    assert body["coverage"]["ledger_missing"] > 0


def test_memory_freed_by_growth_under_stalled_readers_is_found():
    params = {"every": 1, "num_pools": 1, "stall_us": 2000} | QUEUED
    body = run("growth", spec("faulty:early_free"), **params)[-1]
    assert "use_after_free" in body["findings"]
    assert body["coverage"]["ledger_missing"] > 0


def test_an_alias_has_the_host_address_of_its_pinned_memory():
    host = torch.zeros(1000, dtype=torch.int32, pin_memory=True)
    assert host_address(host.data_ptr() + 40) == host.data_ptr() + 40
    assert host_address(torch.zeros(1000, device="cuda").data_ptr()) is None
