"""Comparisons on a seat: what is run against what, what comes into the record, and who is blamed."""

import json
from pathlib import Path

import pytest
import torch
from cells import plain, spec
from targets.faults import PLAIN

import staging
from rig import registry
from rig.client import Client
from rig.controls import defaults
from rig.stats import Histogram
from rig.target import Target
from rig.targets.vllm import NotLiveError, prove_live
from rig.worker import Worker

CPU = torch.device("cpu")
HOT = registry.load("scenarios", "hot_path")
QUICK = {"rounds": 3, "round_ms": 0.01}
PEER = spec("peer", PLAIN)


@pytest.fixture(scope="module")
def worker():
    return Worker(seat="s0", device="cpu", seed=7)


def asked(scenario="hot_path", *, backend="cpu", baseline=None, timeout_s=60.0, **params):
    quick = QUICK if scenario == "hot_path" else {"rounds": 2, "num_steps": 4, "max_requests": 8, "start_requests": 4}
    about = {"id": f"{scenario}:t:{backend}:@s0", "scenario": scenario, "target": "t", "backend": backend}
    more = {"mode": "measure", "params": defaults(scenario) | quick | params, "seat": "s0", "seed": 3}
    return about | more | {"timeout_s": timeout_s, "limits": {}, "baseline": baseline, "ratio_min": {}}


def run(worker, assignment, target):
    *found, body = worker.run(assignment, target)
    json.dumps([*found, body])
    return found, body


def clients():
    manager = staging.DeviceMemoryManager("cpu", backend="cpu")
    yield Client(Target(plain(), device=CPU), name="plain")
    yield Client(Target(staging, device=CPU, manager=manager), name="staging")


def bouts(*, on_gpu=False, own=True, **params):
    given = defaults("hot_path") | QUICK | params
    return {bout.name: bout for bout in HOT.bouts(given, seed=5, on_gpu=on_gpu, own=own)}


@pytest.mark.parametrize("case", [name for name in HOT.CASES if not name.startswith("copy_")])
def test_both_sides_of_a_case_do_the_same_work(case):
    held = []
    for client in clients():
        bouts()[case].build(client).round()
        names = [name for name in client.target.objects if name != "writer"]
        held.append({name: client.words(name).tobytes() for name in names})
    assert held[0] == held[1]
    assert any(any(words) for words in held[0].values()) or "unchanged" in case


@pytest.mark.parametrize("mib", [1, 8])
def test_copies_end_where_they_should(mib):
    (client,) = [one for one in clients() if one.own]
    bout = bouts(on_gpu=True)[f"copy_{mib}mb"]
    bout.build(client).round()
    words = client.words("table")
    assert words.nbytes == 2 * mib << 20
    assert not words[0].any()
    assert words[1].any()
    assert bout.reference(client).round()


def test_what_a_seat_or_a_target_cannot_do_is_left_out():
    copies = {name for name in HOT.CASES if name.startswith("copy_")}
    loops = {name for name in HOT.CASES if name.startswith("numpy_")}
    assert set(bouts()) == set(HOT.CASES) - copies
    assert set(bouts(on_gpu=True)) == set(HOT.CASES) - loops
    assert set(bouts(own=False)) == {name for name, against in HOT.CASES.items() if against is None}
    assert list(bouts(cases=["fused_each", "elements_each"])) == ["elements_each", "fused_each"]


@pytest.mark.parametrize("backend", ["cpu", "sim"])
def test_record_holds_ratios_versions_and_the_times_of_both(worker, backend):
    cases = ["elements_batch", "backed_changed", "decode_step_trust"]
    found, body = run(worker, asked(backend=backend, cases=cases), spec("staging") | {"baseline": PEER})
    assert (body["verdict"], body["reason"], found) == ("PASS", "", [])
    told = body["comparison"]
    assert set(told["ratios"]) == set(body["latency"]) == set(told["latency"]) == set(cases)
    assert {case: ratio["against"] for case, ratio in told["ratios"].items()} == {
        **{"elements_batch": "peer", "backed_changed": "peer", "decode_step_trust": "guard=trust"}
    }
    assert all(ratio["rounds"] == 3 for ratio in told["ratios"].values())
    assert told["baseline"] == "peer"
    assert set(told["versions"]) == {"staging", "peer"}
    assert told["versions"]["peer"].startswith("sha256 ")
    assert told["pinned_bytes"]["elements_batch"] == {"manager": 0}
    assert Histogram.from_dict(told["latency"]["elements_batch"]["histogram"]).n >= 9


def test_without_a_baseline_only_floors_are_compared(worker):
    _, body = run(worker, asked(cases=["elements_each", "numpy_256_batch"]), spec("staging"))
    assert body["verdict"] == "PASS"
    assert set(body["latency"]) == {"elements_each", "numpy_256_batch"}
    assert set(body["comparison"]["ratios"]) == {"numpy_256_batch"}
    assert body["comparison"]["baseline"] is None


def test_engine_loop_is_compared_on_a_seat(worker):
    _, body = run(worker, asked("engine_step"), spec("staging") | {"baseline": PEER})
    assert body["verdict"] == "PASS"
    assert set(body["comparison"]["ratios"]) == {"steps", "host_step"}
    assert body["latency"]["host_step"]["n"] == 8


@pytest.mark.parametrize(
    "missing",
    [
        spec("gone", "import no_such_package\n"),
        spec("no_such.module") | {"kind": "module", "module": "no_such.module"},
    ],
)
def test_a_missing_peer_is_skipped_with_the_reason(worker, missing):
    found, body = run(worker, asked(), spec("staging") | {"baseline": missing})
    assert (body["verdict"], found, body["latency"]) == ("SKIP", [], {})
    assert body["reason"].startswith("not installed here: No module named 'no_such")


def test_a_peer_that_needs_a_gpu_is_skipped_on_a_cpu_seat(worker):
    source = PLAIN.replace("self._staged = []", "torch.zeros(1, pin_memory=True)")
    _, body = run(worker, asked(cases=["elements_each"]), spec("staging") | {"baseline": spec("pins", source)})
    assert body["verdict"] == "SKIP"
    assert body["reason"].startswith("needs a GPU: StagedWriteTensor")


@pytest.mark.parametrize("where", ["target", "baseline"])
def test_what_one_side_raises_is_said_with_its_name(worker, where):
    broken = spec(
        "broken", PLAIN.replace("    def apply_write(self):\n", "    def apply_write(self):\n        1 / 0\n")
    )
    pair = broken | {"baseline": PEER} if where == "target" else spec("staging") | {"baseline": broken}
    found, body = run(worker, asked(cases=["elements_each"]), pair)
    assert body["verdict"] == "FAIL"
    assert body["findings"] == ["exception"]
    assert found[0]["summary"].startswith("elements_each of broken raised ZeroDivisionError")


def test_a_peer_without_a_name_that_is_needed_is_a_finding(worker):
    source = PLAIN.replace("class FusedStagedWriter:", "class Other:")
    _, body = run(worker, asked(cases=["fused_each"]), spec("staging") | {"baseline": spec("old", source)})
    assert (body["verdict"], body["reason"]) == ("FAIL", "the target has no name `FusedStagedWriter`")


def test_time_that_is_up_is_a_hang(worker):
    _, body = run(worker, asked(timeout_s=1e-6), spec("staging"))
    assert body["verdict"] == "HANG"
    assert "the time was up in backed_changed" in body["reason"]


def test_a_trace_that_only_the_driver_has_is_no_verdict_on_the_target(worker):
    found, body = run(worker, asked("engine_step", trace="/no/such.csv"), spec("staging"))
    assert (body["verdict"], found) == ("INCOMPLETE", [])
    assert body["reason"].startswith("/no/such.csv: cannot be read")


def test_the_library_is_as_right_after_a_comparison_as_before(worker):
    run(worker, asked(cases=["elements_each"]), spec("staging") | {"baseline": PEER})
    verify = asked("slot_reuse", backend="sim") | {"mode": "verify", "params": defaults("slot_reuse")}
    _, body = run(worker, verify, spec("staging"))
    assert body["verdict"] == "PASS"


def test_a_live_alias_is_proved():
    prove_live(plain().UvaBuffer(64, torch.int32), whose="the rig")


@pytest.mark.parametrize("when", ["at once", "at the second look"])
def test_an_alias_that_is_a_snapshot_is_refused(when):
    buffer = plain().UvaBuffer(64, torch.int32)
    if when == "at once":
        buffer.uva = lambda: buffer._alias.clone()
    else:
        buffer.np = Forgetful(buffer.np)
    with pytest.raises(NotLiveError, match=r"that the rig makes is not live on cpu: the host wrote 0x.*device read 0x"):
        prove_live(buffer, whose="the rig")


class Forgetful:
    """A host array whose writes arrive once."""

    def __init__(self, array):
        self.array, self.writes = array, 0

    def __setitem__(self, where, value):
        self.writes += 1
        if self.writes == 1:
            self.array[where] = value


def test_configs_of_comparisons_name_cases_that_exist():
    from rig.config import load_config

    root = Path(__file__).parent.parent / "configs"
    for path in sorted(root.glob("*.yaml")):
        config = load_config(path)
        assert config.name == path.stem
    bars = load_config(root / "compare_vllm.yaml").runs[0].ratio_min
    assert set(bars) <= set(HOT.CASES)
    assert bars["tokens_array"] == 200
