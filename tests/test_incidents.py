"""Public incidents: each pattern is caught as what it is, each fix is clean, and a disarmed one fails the run."""

import json
import random
from pathlib import Path

import pytest
import torch
from cells import CPU, spec
from targets.faults import PLAIN, planted
from torch.multiprocessing.reductions import StorageWeakRef

from rig import calls, device, load_config, ops, registry
from rig.cause import KINDS
from rig.controls import defaults
from rig.errors import UsageError
from rig.scenarios import incident as scenario
from rig.sources import target_spec
from rig.targets import unfenced
from rig.worker import Worker

NAMES = registry.names("incidents")
INCIDENTS = {name: registry.load("incidents", name) for name in NAMES}
CONFIG = Path(__file__).parent.parent / "configs" / "incidents.yaml"
SHOWN = [(name, backend) for name in NAMES for backend in ("sim", "cpu") if backend in INCIDENTS[name].BACKENDS]
ON_SIM = [name for name, backend in SHOWN if backend == "sim"]
ON_GPU = [name for name in NAMES if not {"sim", "cpu"} & set(INCIDENTS[name].BACKENDS)]
BEYOND = [name for name in NAMES if hasattr(INCIDENTS[name], "BEYOND")]


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    monkeypatch.setattr(INCIDENTS["skipped_rendezvous"], "DEADLINE_S", 0.8)
    monkeypatch.setattr(calls, "_GRACE_S", 0.1)


@pytest.fixture(scope="module")
def worker():
    one = Worker(seat="s0", device="cpu", seed=7)
    yield one
    one.close()


def judged(worker, name, target, *, backend="sim", seed=3):
    asked = {"id": f"incident:t:{backend}:name={name}@s0", "scenario": "incident", "target": target["name"]}
    asked |= {"backend": backend, "mode": "verify", "params": defaults("incident") | {"name": name}, "seat": "s0"}
    *found, body = worker.run(asked | {"seed": seed, "timeout_s": 60.0, "limits": {}}, target)
    json.dumps([*found, body])
    return found, body


def test_there_is_one_for_each_of_the_twenty_and_the_config_has_them_all():
    assert {module.NUMBER for module in INCIDENTS.values()} == set(range(1, 21))
    (entry,) = load_config(CONFIG).runs
    assert sorted(entry.sweep["name"]) == NAMES == list(scenario.PARAMS["name"].choices)


@pytest.mark.parametrize("name", NAMES)
def test_an_incident_says_what_it_was_and_its_operations_are_a_short_list_of_data(name):
    module = INCIDENTS[name]
    assert all((module.SUMMARY, module.FIX, module.THREADS))
    assert module.KIND in (*KINDS, "hang", "leak", "exception", "latency")
    assert set(module.BACKENDS) <= {"sim", "cpu", "cuda_uva", "cuda_copy"}
    for listed in (module.ops, getattr(module, "ops_on_gpu", module.ops)):
        one, again = (list(listed(random.Random(seed))) for seed in (3, 3))
        assert one == again == [ops.from_dict(json.loads(json.dumps(op.to_dict()))) for op in one]
        assert 4 <= sum(isinstance(op, ops.Step) for op in one) <= 40
        assert any(isinstance(op, ops.Read) for op in one)


@pytest.mark.parametrize(("name", "backend"), SHOWN)
def test_its_pattern_is_caught_its_fix_is_clean_and_so_is_our_library(worker, name, backend):
    found, body = judged(worker, name, spec("staging"), backend=backend)
    assert (body["verdict"], found) == ("PASS", []), body["reason"]
    caught, fix, ours = body["reason"].split("; ")[0], *body["reason"].split("; ")[-2:]
    assert caught.startswith(f"caught as {INCIDENTS[name].KIND}: ")
    assert fix.startswith("fix clean in ")
    assert ours.startswith("staging: ")
    assert body["coverage"][f"caught_{INCIDENTS[name].KIND}"] == 1
    assert body["checked_words"] > body["coverage"]["words_of_fix"] > 100


@pytest.mark.parametrize("seed", [4, 5])
def test_it_is_caught_whatever_the_seed(worker, seed):
    for name in (name for name in ON_SIM if INCIDENTS[name].KIND != "hang"):
        assert judged(worker, name, spec("unfenced"), seed=seed)[1]["verdict"] == "PASS", name


@pytest.mark.parametrize("name", ON_SIM)
def test_a_disarmed_incident_fails(worker, monkeypatch, name):
    monkeypatch.setattr(INCIDENTS[name], "buggy", INCIDENTS[name].fixed)
    _, body = judged(worker, name, spec("staging"))
    assert (body["verdict"], body["findings"]) == ("FAIL", ["exception"])
    assert body["reason"].startswith(f"not caught: {name} has to be found as {INCIDENTS[name].KIND}; no finding in ")
    assert body["coverage"][f"caught_{INCIDENTS[name].KIND}"] == 0


@pytest.mark.parametrize("name", [name for name in ON_SIM if INCIDENTS[name].KIND != "hang"])
def test_a_fix_that_is_none_fails(worker, monkeypatch, name):
    monkeypatch.setattr(INCIDENTS[name], "fixed", INCIDENTS[name].buggy)
    _, body = judged(worker, name, spec("staging"))
    assert (body["verdict"], body["findings"]) == ("FAIL", ["exception"])
    assert body["reason"].startswith(f"the fix of {name} is not clean: ")
    assert f"{INCIDENTS[name].KIND}: " in body["reason"]


def test_an_exception_does_not_count_as_caught(worker, monkeypatch):
    def broken(on):
        class UvaBufferPool(unfenced.UvaBufferPool):
            def copy_to_uva(self, x):
                raise RuntimeError("no")

        return unfenced.module(on, UvaBufferPool)

    monkeypatch.setattr(INCIDENTS["one_pinned_buffer"], "buggy", broken)
    _, body = judged(worker, "one_pinned_buffer", spec("staging"))
    assert body["verdict"] == "FAIL"
    assert "not caught: one_pinned_buffer has to be found as slot_reuse; exception: publish" in body["reason"]


def test_exactly_the_five_buffers_are_ahead():
    name = "five_of_eight_ahead"
    module = INCIDENTS[name].buggy(CPU)
    made = [module.UvaBufferPool(4, torch.int32, 2) for _ in range(8)]
    same = [pool.copy_to_uva([1]).data_ptr() == pool.copy_to_uva([2]).data_ptr() for pool in made]
    assert same == [True] * 5 + [False] * 3


@pytest.mark.parametrize("name", ON_GPU)
def test_one_that_needs_a_gpu_is_skipped_with_the_reason(worker, name):
    found, body = judged(worker, name, spec("staging"))
    assert (body["verdict"], found) == ("SKIP", [])
    assert body["reason"].startswith("needs a GPU: it shows on cuda_uva")


def test_a_race_is_not_looked_for_where_readers_run_at_once(worker):
    _, body = judged(worker, "one_pinned_buffer", spec("staging"), backend="cpu")
    assert (body["verdict"], body["reason"]) == ("SKIP", "it shows on sim, cuda_uva, not on cpu")


def test_a_target_with_the_fault_fails_by_its_own_finding(worker):
    found, body = judged(worker, "depth_one_short", spec("t", planted("one_step_early")))
    assert (body["verdict"], body["findings"]) == ("FAIL", ["slot_reuse"])
    assert found[0]["summary"].startswith("pool `slot_mapping`: read of step 1 (slot 0) returned step 3's words")
    assert "caught as slot_reuse" in body["reason"]


@pytest.mark.parametrize("name", BEYOND)
def test_a_target_without_fences_is_not_asked_for_more_than_its_contract(worker, name):
    _, body = judged(worker, name, spec("t", PLAIN))
    assert body["verdict"] == "PASS"
    assert f"t was not judged: beyond contract: {INCIDENTS[name].BEYOND}" in body["reason"]


def test_a_target_that_lacks_a_name_is_not_judged_and_the_incident_is(worker):
    _, body = judged(worker, "short_row_offset", spec("t", planted("no_staged_tensor")))
    assert body["verdict"] == "PASS"
    assert body["reason"].endswith("; t was not judged: it has no StagedWriteTensor")


@pytest.mark.parametrize("of", ["incident", "fixed"])
def test_each_is_a_target_by_its_name(of):
    assert registry.variants("targets", of) == NAMES
    assert target_spec(f"{of}:snapshot_alias")["kind"] == "builtin"
    for wrong in (of, f"{of}:snapshot_alia"):
        with pytest.raises(UsageError, match=f"{of}:dead_temporary"):
            target_spec(wrong)


def test_an_incident_times_nothing(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("version: 1\nname: t\nruns:\n  - scenario: incident\n    mode: both\n")
    with pytest.raises(UsageError, match="found 'both'; expected 'verify': incident times nothing"):
        load_config(path)


@pytest.mark.parametrize("asked", ["slot_reuse", "growth", "ragged_writes", "fused_apply", "backed_tensors"])
def test_the_module_that_incidents_are_derived_from_is_right(worker, asked):
    given = {"id": asked, "scenario": asked, "target": "unfenced", "backend": "sim", "mode": "verify", "seat": "s0"}
    given |= {"params": defaults(asked) | {"num_steps": 40}, "seed": 3, "timeout_s": 60.0, "limits": {}}
    *found, body = worker.run(given, spec("unfenced"))
    assert (body["verdict"], found) == ("PASS", []), body["reason"]


def told(name, of):
    """What an incident's check finds wrong with one of its modules on a CPU, where the GPU's part is played."""
    import staging

    manager = staging.DeviceMemoryManager(CPU)
    staging.set_default_manager(manager)
    try:
        return INCIDENTS[name].check(getattr(INCIDENTS[name], of)(CPU), CPU)
    finally:
        manager.close()


def test_a_graph_that_keeps_an_address_is_told_from_one_whose_slot_is_held(monkeypatch):
    monkeypatch.setattr(device, "captured", lambda on, work: work)  # what is bound stays bound, as in a graph
    assert told("graph_keeps_address", "buggy") == f"a replay after publish 2 read {[1] * 8}"
    assert told("graph_keeps_address", "fixed") is None


def test_memory_freed_under_a_side_stream_is_told_from_memory_that_is_kept(monkeypatch):
    def seen_late(on, make, then):
        tensor = make()
        seen, weak = tensor.clone(), StorageWeakRef(tensor.untyped_storage())
        del tensor
        then()
        return seen.zero_() if weak.expired() else seen

    monkeypatch.setattr(device, "seen_late", seen_late)
    assert "allocator reusing freed blocks at once: 3,145,727 of 3,145,728 words foreign" in told(
        "hidden_by_allocator", "buggy"
    )
    assert told("hidden_by_allocator", "fixed") is None


def test_an_allocation_every_step_is_told_from_slots_allocated_once(monkeypatch):
    made, real = [], unfenced.UvaBuffer.allocate
    monkeypatch.setattr(unfenced.UvaBuffer, "allocate", lambda self, nbytes: made.append(nbytes) or real(self, nbytes))
    monkeypatch.setattr(device, "num_pinned_allocations", lambda: len(made))
    assert told("pinned_allocation_per_step", "buggy") == "32 publishes made 32 allocations of pinned memory"
    assert told("pinned_allocation_per_step", "fixed") is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("name", [name for name in NAMES if "cuda_uva" in INCIDENTS[name].BACKENDS])
def test_on_a_gpu_it_is_caught_and_its_fix_is_clean(name):
    seat = Worker(seat="s0", device="cuda:0", seed=7)
    found, body = judged(seat, name, spec("staging"), backend="cuda_uva")
    assert (body["verdict"], found) == ("PASS", []), body["reason"]
    assert body["reason"].startswith(f"caught as {INCIDENTS[name].KIND}: ")
