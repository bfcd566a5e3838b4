"""The ledger beside a verify pass: edges that are missing are found although every reader saw the right words."""

import weakref

import pytest
import torch
from cells import CPU, judged, spec
from targets.faults import PLAIN, planted

import staging
from rig import judge
from rig.controls import defaults
from rig.ledger_backend import _Telling
from rig.ledger_observer import Watch
from rig.readers import Late
from rig.target import Target
from rig.worker import Worker
from staging.backend import Backend
from staging.backends import _sim_device, cpu, sim
from staging.retired import RetiredMemory

QUEUED = {"in_flight": 6, "beyond_contract": True}
SHORT = {"num_steps": 12, "rows": 16}
ENGINE = {"slot_reuse": {"buffers_every": 5}, "growth": {"remake_every": 6, "drop": "queued", "every": 2}}


class Early(Late):
    """Readers that happen to run as soon as they are launched, so that every word is right."""

    def launch(self, view, num_rows, **more):
        read = super().launch(view, num_rows, **more)
        self.sim.synchronize()
        return read


@pytest.fixture(params=["sim", "cpu"])
def early(request, monkeypatch):
    """A backend on which every reader happens to run early; on `cpu` they always do."""
    monkeypatch.setattr(judge, "Late", Early)
    return request.param


def in_order(scenario, target, backend, **params):
    """Whether a run was without findings; those there are came from the ledger alone, which is made sure of."""
    params = SHORT | params
    assert judged(scenario, target, backend, **params).found == []
    run = judged(scenario, target, backend, ledger=True, **params)
    assert all(finding.summary.startswith("ledger: ") for finding in run.found)
    assert bool(run.found) == ("ledger_missing" in run.result.ledger)
    assert run.result.checked.words > 0
    return run.kinds


@pytest.mark.parametrize(
    ("scenario", "fault", "kind"),
    [("slot_reuse", "one_step_early", "slot_reuse"), ("growth", "growth_frees_all", "use_after_free")],
)
def test_a_foreign_fault_is_found_though_the_data_were_right(early, scenario, fault, kind):
    assert in_order(scenario, fault, early) == {kind}
    assert in_order(scenario, "plain", early) == set()


def test_a_pool_without_fences_is_found_though_the_data_were_right(early):
    assert in_order("slot_reuse", "faulty:unfenced_reuse", early, **QUEUED) == {"slot_reuse"}
    assert in_order("slot_reuse", "staging", early, **QUEUED) == set()


def test_memory_freed_without_a_fence_is_found_though_the_data_were_right(early, monkeypatch):
    params = QUEUED | ENGINE["growth"]
    assert in_order("growth", "staging", early, **params) == set()
    monkeypatch.setattr(RetiredMemory, "drop", lambda self, block: self._accounting.remove(block))
    assert in_order("growth", "staging", early, **params) == {"use_after_free"}


def test_readers_of_a_side_stream_that_nobody_retired_are_found(monkeypatch):
    monkeypatch.setattr(judge, "Late", Early)
    params = {"streams": 2, "in_flight": 5, "num_backed": 0, "copies_every": 0}
    assert in_order("slot_reuse", "staging", "sim", **params) == set()
    monkeypatch.setattr(Target, "retire", lambda self, stream: None)
    assert in_order("slot_reuse", "staging", "sim", **params) == {"slot_reuse"}


@pytest.mark.parametrize("retires", [False, True])
def test_a_lease_retired_on_a_side_stream_is_an_edge(retires):
    device = _sim_device.SimDevice(1, schedule="late")
    watch = Watch(Early(device), device=CPU)
    manager = staging.DeviceMemoryManager(device=CPU, backend=watch.backend(sim.SimBackend(device)))
    target = Target(staging, device=CPU, manager=manager)
    target.objects["p"] = pool = staging.UvaBufferPool(4, torch.int32, 2, manager=manager)
    watch.begin(target)
    watch.ledger.tensor = "p"
    for _ in range(3):
        lease = pool.lease([1, 2, 3, 4])
        watch.readers.launch(watch.readers.hold(lease.tensor), None, stream="side")
        if retires:
            lease.retire(device.stream("side"))
    assert bool(watch.ledger.missing) == (not retires)
    manager.close()


class Twins(sim.SimBackend):
    """As cuda_copy: a twin for every block, and fences of the backend's own making behind its copies."""

    def allocate(self, nbytes, *, mapped=True, pinned=True):
        return super().allocate(nbytes, mapped=False)

    def publish(self, block, start, stop):
        super().publish(block, start, stop)
        if start < stop:
            block.copied = self.fence()

    def probe(self):
        return super().probe()._replace(ok=True)


@pytest.mark.parametrize("scenario", ["slot_reuse", "growth", "ragged_writes", "fused_apply"])
def test_twins_are_in_order_and_their_copies_are_noted(scenario, monkeypatch):
    monkeypatch.setattr(sim, "SimBackend", Twins)
    run = judged(scenario, "staging", "sim", ledger=True, num_steps=6, streams=2, **ENGINE.get(scenario, {}))
    assert run.found == []
    assert run.result.ledger["ledger_fence_edges"] > 0


def test_a_copy_to_a_twin_that_waits_for_no_reader_of_a_side_stream_is_found(monkeypatch):
    params = {"streams": 2, "num_backed": 0, "copies_every": 0, "in_flight": 4, "ledger": True}
    monkeypatch.setattr(sim, "SimBackend", Twins)
    assert "ledger_missing" not in judged("slot_reuse", "staging", "sim", **SHORT, **params).result.ledger
    monkeypatch.setattr(_Telling, "order", lambda self, fence: None)
    assert judged("slot_reuse", "staging", "sim", **SHORT, **params).result.ledger["ledger_missing"] > 0


def test_an_apply_slot_that_is_written_under_its_launch_is_found(monkeypatch):
    monkeypatch.setattr(judge, "Late", Early)
    assert in_order("ragged_writes", "staging", "sim", in_flight=4) == set()
    monkeypatch.setattr("staging.backend.Block.is_writable", lambda self: True)
    assert in_order("ragged_writes", "staging", "sim", in_flight=4) == {"slot_reuse"}


@pytest.mark.parametrize("backend", ["sim", "cpu"])
@pytest.mark.parametrize("target", ["staging", "plain", "model"])
@pytest.mark.parametrize("scenario", ["slot_reuse", "growth", "ragged_writes", "fused_apply"])
def test_what_is_in_order_is_not_flagged(scenario, target, backend):
    engine = ENGINE.get(scenario, {}) if target == "staging" else {}
    for schedule in ("late", "random"):
        run = judged(scenario, target, backend, ledger=True, num_steps=8, streams=2, schedule=schedule, **engine)
        assert run.found == []
        assert "ledger_missing" not in run.result.ledger


@pytest.mark.parametrize("backend", ["sim", "cpu"])
def test_publishes_that_are_work_of_the_stream_are_no_writes_of_the_host(backend, tmp_path):
    source = planted("one_step_early") + '\nRIG_READS = "stream_ordered"\n'
    body = assigned(backend, source, ledger=True)
    assert (body["verdict"], body["findings"]) == ("PASS", [])
    assert assigned("cpu", planted("one_step_early"), ledger=True)["findings"] == ["slot_reuse"] * 3


@pytest.mark.parametrize(
    ("scenario", "target", "params"),
    [
        ("slot_reuse", "one_step_early", {}),
        ("slot_reuse", "faulty:unfenced_reuse", QUEUED),
        ("growth", "growth_frees_all", {}),
    ],
)
def test_what_the_words_showed_is_not_reported_twice(scenario, target, params):
    params = SHORT | params
    with_ledger = judged(scenario, target, "sim", ledger=True, **params)
    by_words = judged(scenario, target, "sim", **params).found
    assert by_words
    assert [f for f in with_ledger.found if not f.summary.startswith("ledger: ")] == by_words
    seen = set()
    for finding in with_ledger.found:
        key = (finding.kind, finding.tensor.partition("#")[0])
        assert not (key in seen and finding.summary.startswith("ledger: "))
        seen.add(key)
    assert with_ledger.result.ledger["ledger_missing"] > len(with_ledger.found) - len(by_words)


def test_a_finding_names_step_stream_slot_and_what_was_missing():
    (first, *_) = judged("slot_reuse", "one_step_early", "cpu", ledger=True, **SHORT).found
    assert first.summary.startswith(
        "ledger: `pool0`: no fence between the read of step 1 on stream main and the write of "
    )
    assert "step 2 into slot 0" in first.summary
    assert first.overwriter == {"step": 2, "slot": 0}


def assigned(backend, source=None, **more):
    asked = {
        "id": "a",
        "scenario": "slot_reuse",
        "target": "staging" if source is None else "plain",
        "backend": backend,
        "mode": "both",
        "params": defaults("slot_reuse") | {"num_steps": 8},
        "seat": "s0",
        "seed": 3,
        "timeout_s": 60.0,
        "limits": {},
    }
    worker = Worker(seat="s0", device="cpu", seed=7)
    return list(worker.run(asked | more, spec(asked["target"], source)))[-1]


def test_the_record_says_which_edges_the_ledger_had():
    ours, foreign = (assigned("sim", source, ledger=True)["coverage"] for source in (None, PLAIN))
    assert ours["ledger_fence_edges"] > 0
    assert foreign["ledger_fence_edges"] == 0
    assert foreign["ledger_settle_edges"] > 0
    for counts in (ours, foreign):
        assert counts["ledger_events"] >= counts["reads"]
        assert counts["ledger_edges"] >= counts["ledger_fence_edges"] + counts["ledger_settle_edges"]
    assert not [key for key in assigned("sim")["coverage"] if key.startswith("ledger")]


def test_every_call_of_a_backend_is_told_of_or_known_to_make_no_edge():
    silent = {"probe", "order_behind", "is_capturing", "refuse_capture", "rounded", "note", "is_device_error"}
    for kind in (Backend, sim.SimBackend, cpu.CpuBackend):
        calls = {name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))}
        assert calls - silent == {name for name in vars(_Telling) if not name.startswith("_")}


def test_a_ledger_keeps_no_memory_alive():
    device = _sim_device.SimDevice(1, schedule="late")
    watch = Watch(Late(device), device=CPU)
    watch.begin(Target(staging, device=CPU))
    owner = torch.zeros(100)
    gone = weakref.ref(owner)
    view = watch.readers.hold(owner)
    ticket = watch.readers.launch(view, None, stream="main")
    storage_count = torch._C._storage_Use_Count(owner.untyped_storage()._cdata)
    del view
    assert torch._C._storage_Use_Count(owner.untyped_storage()._cdata) <= storage_count
    del owner
    assert gone() is None
    assert ticket.wait() is None
    watch.readers.poll(1)
    assert watch.ledger.missing == []
