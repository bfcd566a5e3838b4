"""A seat: what it says of itself, and a record for whatever happens."""

import json
import resource
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from cells import spec
from targets.faults import PLAIN, planted

from rig.controls import defaults
from rig.worker import Worker

BODY = {
    *("type", "id", "scenario", "target", "seat", "backend", "mode", "params", "verdict", "reason", "attempt"),
    *("elapsed_s", "checked_words", "findings", "latency", "coverage"),
}


@pytest.fixture(scope="module")
def worker():
    return Worker(seat="s0", device="cpu", seed=7)


def assignment(scenario="slot_reuse", *, backend="sim", mode="verify", timeout_s=60.0, **params):
    return {
        "id": f"{scenario}:t:{backend}:@s0",
        "scenario": scenario,
        "target": "t",
        "backend": backend,
        "mode": mode,
        "params": defaults(scenario) | {"num_steps": 10} | params,
        "seat": "s0",
        "seed": 3,
        "timeout_s": timeout_s,
        "limits": {},
    }


def run(worker, asked, target):
    *found, body = worker.run(asked, target)
    json.dumps([*found, body])
    assert set(body) == BODY
    assert all(finding["assignment"] == asked["id"] and finding["replay"] is None for finding in found)
    assert body["findings"] == [finding["kind"] for finding in found]
    return found, body


@pytest.mark.parametrize("mode", ["verify", "measure", "both"])
def test_a_sound_target_passes_in_every_mode(worker, mode):
    found, body = run(worker, assignment(mode=mode), spec("staging"))
    assert (body["verdict"], body["reason"], found) == ("PASS", "", [])
    assert (body["checked_words"] > 0) == (mode != "measure")
    assert bool(body["latency"]) == (mode != "verify")
    assert bool(body["coverage"]) == (mode != "measure")


def test_a_finding_fails_the_assignment_and_is_its_reason(worker):
    found, body = run(worker, assignment(mode="both"), spec("t", planted("one_step_early")))
    assert body["verdict"] == "FAIL"
    assert body["reason"].startswith(found[0]["summary"])
    assert not body["latency"], "a target that is wrong is not timed"
    assert set(found[0]["first"]) == {"step", "slot", "tensor", "row", "offset", "expected", "got"}
    assert set(found[0]["overwriter"]) == {"step", "slot"}


@pytest.mark.parametrize("fault", ["import_raises", "constructor_raises", "publish_raises", "no_staged_tensor"])
def test_what_a_target_does_wrong_is_said_in_its_record(worker, fault):
    scenario = "ragged_writes" if fault == "no_staged_tensor" else "slot_reuse"
    found, body = run(worker, assignment(scenario), spec("t", planted(fault)))
    assert body["verdict"] == "FAIL"
    assert body["findings"] == ["exception"]
    hint = {
        "import_raises": "import of t raised OSError: no such library",
        "constructor_raises": "size must be odd (t:",
        "publish_raises": "SystemExit: gone",
        "no_staged_tensor": "no name `StagedWriteTensor`",
    }
    assert hint[fault] in body["reason"]
    assert found[0]["first"] is None


def test_an_error_of_the_rig_is_no_verdict_on_the_target(worker):
    asked = assignment() | {"params": {}}
    found, body = run(worker, asked, spec("staging"))
    assert (body["verdict"], found) == ("ERROR", [])
    assert body["reason"].startswith("Traceback")


@pytest.mark.parametrize(
    ("asked", "target", "reason"),
    [
        (assignment(backend="cuda_uva"), spec("staging"), "needs a GPU: backend cuda_uva on a CPU seat"),
        (assignment(in_flight=3), spec("t", PLAIN), "beyond contract"),
        (assignment("fused_apply", dtypes=["float32"]), spec("t", PLAIN), "beyond contract"),
        pytest.param(
            *(assignment(), spec("vllm"), "not installed here: No module named 'vllm'"),
            marks=pytest.mark.skipif(find_spec("vllm") is not None, reason="here it is installed"),
        ),
    ],
)
def test_what_is_not_judged_says_why(worker, asked, target, reason):
    _, body = run(worker, asked, target)
    assert body["verdict"] == "SKIP"
    assert body["reason"].startswith(reason)
    assert body["checked_words"] == 0


def test_after_a_lost_device_nothing_is_blamed_on_the_targets_that_follow():
    own = Worker(seat="s0", device="cpu", seed=7)
    source = PLAIN.replace(
        "        slot = self._slots",
        "        raise RuntimeError('CUDA error: an illegal access')\n        slot = self._slots",
    )
    _, body = run(own, assignment(num_backed=0) | {"id": "guilty"}, spec("t", source))
    assert (body["verdict"], body["findings"]) == ("FAIL", ["exception"])
    found, body = run(own, assignment(), spec("staging"))
    assert (body["verdict"], body["reason"], found) == ("INCOMPLETE", "the device was lost in guilty", [])


def test_after_a_target_that_spoils_the_process_nothing_is_judged_in_it(monkeypatch):
    own = Worker(seat="s0", device="cpu", seed=7)
    monkeypatch.setattr(np, "array_equal", np.array_equal)
    run(own, assignment(), spec("harmless", PLAIN))
    _, body = run(own, assignment(), spec("staging"))
    assert body["verdict"] == "PASS"
    run(own, assignment(), spec("guilty", PLAIN + "\nnp.array_equal = lambda a, b: True\n"))
    for target in (spec("t", planted("one_step_early")), spec("staging")):
        found, body = run(own, assignment(), target)
        assert (body["verdict"], found) == ("INCOMPLETE", [])
        assert body["reason"].startswith("target guilty left this process unfit to judge: control unfenced_reuse: not")


@pytest.mark.parametrize(
    ("source", "verdict", "reason"),
    [
        ("raise KeyboardInterrupt", "FAIL", "import of t raised KeyboardInterrupt (t:1 in <module>)"),
        ("x = (", "FAIL", "import of t raised SyntaxError: '(' was never closed (t:1)"),
        ("raise OSError('\\x1b[31m\\n' + 'x' * 3_000_000)", "FAIL", "import of t raised OSError: \\x1b[31m\\nxxx"),
        (PLAIN + '\nRIG_READS = "stream-ordered"\n', "FAIL", 'RIG_READS may be "stream_ordered" or absent, not'),
        (PLAIN + '\nRIG_READS = "stream_ordered"\n', "PASS", "races were not judged here: "),
    ],
    ids=["interrupt", "syntax", "long", "reads", "stream_ordered"],
)
def test_a_record_says_in_one_short_line_what_was_wrong_or_not_judged(worker, source, verdict, reason):
    _, body = run(worker, assignment(), spec("t", source))
    assert body["verdict"] == verdict
    assert body["reason"].startswith(reason)
    assert len(body["reason"]) < 2200


def test_an_assignment_out_of_time_hangs(worker):
    _, body = run(worker, assignment(num_steps=10_000_000, timeout_s=0.2), spec("staging"))
    assert body["verdict"] == "HANG"
    assert body["reason"].startswith("timeout_s=0.2: the time was up in step ")
    assert body["checked_words"] > 0


def test_progress_names_the_assignment_and_its_step(worker):
    asked = assignment(num_steps=5)
    stream = worker.run(asked, spec("t", planted("one_step_early")))
    next(stream)
    assert worker.progress()["assignment"] == asked["id"]
    assert worker.progress()["step"] > 0
    list(stream)
    assert worker.progress() == {"assignment": None, "step": 0, "stage": ""}


def test_the_same_assignment_gives_the_same_records(worker):
    asked = assignment(schedule="random", num_steps=40)
    first, again = (run(worker, asked, spec("t", planted("one_step_early"))) for _ in range(2))
    assert first[0] == again[0]
    assert first[1] | {"elapsed_s": 0} == again[1] | {"elapsed_s": 0}


def test_two_seats_run_the_same_stream_with_their_own_words():
    bodies = []
    for seat in ("s0", "s1"):
        found, body = run(Worker(seat=seat, device="cpu", seed=7), assignment(), spec("t", planted("one_step_early")))
        bodies.append((body["coverage"], found[0]["first"]["step"], found[0]["first"]["got"]))
    assert bodies[0][:2] == bodies[1][:2]
    assert bodies[0][2] != bodies[1][2]


def test_a_seat_describes_itself_in_builtins(worker):
    described = json.loads(json.dumps(worker.describe()))
    assert set(described) == {"node", "device", "uuid", "backends", "environment"}
    probes = {backend["name"]: backend["probe"] for backend in described["backends"]}
    assert probes["sim"] == probes["cpu"] == "ok"
    assert described["environment"]["torch"]


def test_a_cpu_seat_runs_the_controls_of_cpu_backends(worker):
    records = list(worker.controls(["sim", "cuda_uva"]))
    assert {record["backend"] for record in records} == {"sim"}
    assert all(record["caught"] for record in records)
    worker.close()


HOARDER = PLAIN.replace(
    "        x = torch.as_tensor(x, dtype=self.dtype)\n",
    "        hoard = []\n"
    "        while len(hoard) < 1000:\n"
    "            hoard.append(torch.empty(1 << 30, dtype=torch.uint8))\n"
    "        x = torch.as_tensor(x, dtype=self.dtype)\n",
)


@pytest.mark.skipif(torch.cuda.is_available(), reason="cells.py takes the bound away for CUDA")
def test_a_target_that_never_stops_allocating_fails_and_leaves_the_seat_to_the_others():
    before = resource.getrlimit(resource.RLIMIT_DATA)
    seat = Worker(seat="s1", device="cpu", seed=7)
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] < 1000 << 30
    found, body = run(seat, assignment(), spec("t", HOARDER))
    assert (body["verdict"], [finding["kind"] for finding in found]) == ("FAIL", ["exception"])
    assert "allocate memory" in found[0]["summary"]
    assert run(seat, assignment(), spec("t", PLAIN))[1]["verdict"] == "PASS"
    seat.close()
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
