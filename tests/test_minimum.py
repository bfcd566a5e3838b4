"""After a pass with findings: few operations show each again, in time, and nothing that was found is lost over it."""

import sys

import pytest
from cells import spec
from doubles import planned
from found import counted, judged, shown, written
from targets.faults import PLAIN, planted

from rig import minimum
from rig.controls import CONTROLS, defaults
from rig.digest import digest
from rig.worker import Worker

FAULTS = [  # of order and lifetime: a file with one fault, scenario, backend, what it is found as
    ("one_step_early", "slot_reuse", "sim", "slot_reuse"),
    ("keeps_callers_memory", "slot_reuse", "sim", "slot_reuse"),
    ("growth_frees_all", "growth", "sim", "use_after_free"),
    ("snapshot_alias", "slot_reuse", "cpu", "stale_alias"),
    ("copy_is_slot", "slot_reuse", "cpu", "slot_reuse"),
    ("copy_is_reused", "slot_reuse", "cpu", "slot_reuse"),
    ("staged_moves", "ragged_writes", "cpu", "stale_alias"),
    ("keeps_callers_list", "ragged_writes", "cpu", "lost_write"),
    ("first_writer_wins", "ragged_writes", "cpu", "wrong_winner"),
]
OURS = [control for control in CONTROLS if control.fault in ("unfenced_reuse", "early_free", "stale_alias")]


@pytest.mark.parametrize(("fault", "scenario", "backend", "kind"), FAULTS)
def test_a_fault_of_order_or_lifetime_is_shown_by_few_operations_every_time(
    fault, scenario, backend, kind, tmp_path, capsys
):
    overlap = {"overlap": True} if fault == "first_writer_wins" else {}
    _, files = written(tmp_path, judged(spec("mine", planted(fault)), scenario, backend, **overlap))
    path, failure = next((path, failure) for path, failure in files if failure["finding"]["kind"] == kind)
    assert 1 <= len(counted(failure)) <= 8
    assert failure["num_ops"]["before"] > failure["num_ops"]["after"] == len(failure["ops"])
    code, lines = shown(capsys, path, "--times", 20)
    assert (code, lines[-1]) == (1, "reproduced 20 of 20")
    assert f"try 20: {kind}: {failure['expected']['summary']}" in lines
    (tmp_path / "fixed.py").write_text(PLAIN)
    code, lines = shown(capsys, path, "--times", 2, "--target", tmp_path / "fixed.py")
    assert (code, lines[-3:]) == (0, ["try 1: nothing wrong", "try 2: nothing wrong", "reproduced 0 of 2"])


@pytest.mark.parametrize("control", OURS, ids=lambda control: control.fault)
def test_a_fault_of_our_own_library_too(control, tmp_path, capsys):
    records = judged(spec(f"faulty:{control.fault}"), control.scenario, **control.params)
    _, files = written(tmp_path, records)
    path, failure = next((path, failure) for path, failure in files if failure["finding"]["kind"] == control.kind)
    assert 1 <= len(counted(failure)) <= 8
    assert shown(capsys, path, "--times", 20)[1][-1] == "reproduced 20 of 20"
    assert shown(capsys, path, "--target", "staging") == (0, [*shown(capsys, path, "--target", "model")[1]])


@pytest.mark.parametrize("depth", [3, 4])
def test_a_deep_pool_is_shown_at_less_depth(depth, tmp_path):
    params = {"depth": depth, "in_flight": depth, "schedule": "random", "streams": 2}
    _, files = written(tmp_path, judged(spec("mine", planted("one_step_early")), "slot_reuse", **params))
    failure = next(f for _, f in files if f["finding"]["kind"] == "slot_reuse")
    assert len(counted(failure)) <= 8
    assert failure["ops"][0]["depth"] == 2


@pytest.mark.parametrize("shrink_s", [0.0, 1e-9])
def test_without_time_nothing_is_shrunk(shrink_s, tmp_path):
    records = judged(spec("mine", planted("one_step_early")), "slot_reuse", shrink_s=shrink_s)
    _, files = written(tmp_path, records)
    assert {failure["ops"] for _, failure in files} == {None}
    assert files[0][1]["note"] == ("not shrunk: no time was left" if shrink_s else "")
    assert digest(records)["verdict"] == "FAIL"


def test_what_does_not_come_back_is_reported_and_says_so(tmp_path):
    once = PLAIN.replace("self._current = 0\n", "self._current = 0\n        self._early = not MARK.exists()\n")
    once = once.replace("% self.max_concurrency\n", "% (self.max_concurrency - self._early)\n")
    mark = f"import pathlib\nMARK = pathlib.Path({str(tmp_path / 'mark')!r})\n"
    source = mark + once.replace(
        "    def copy_to_gpu(self", "    def __del__(self):\n        MARK.touch()\n\n    def copy_to_gpu(self", 1
    )
    report, files = written(tmp_path, judged(spec("mine", source), "slot_reuse", num_backed=0))
    (assignment,) = report["assignments"]
    assert assignment["verdict"] == "FAIL"
    assert assignment["reason"].endswith("slot_reuse: not reproduced in 1 try")
    notes = ["not reproduced in 1 try", "only the first finding of a kind is shrunk in an assignment"]
    assert [(failure["ops"], failure["note"]) for _, failure in files] == [(None, note) for note in notes]


def test_a_target_that_can_be_imported_only_once_is_not_reproduced():
    source = "import sys\nassert not hasattr(sys, 'rig_test_once')\nsys.rig_test_once = 1\n"
    try:
        records = judged(spec("mine", source + planted("one_step_early")), "slot_reuse")
    finally:
        del sys.rig_test_once
    (assignment,) = digest(records)["assignments"]
    assert assignment["verdict"] == "FAIL"
    assert assignment["reason"].endswith("slot_reuse: not reproduced in 1 try")


def test_shrinking_stays_within_the_time_of_its_assignment(monkeypatch):
    asked = []

    def replays(cell, target, found, *, until_ns):
        asked.append(until_ns - minimum.time.perf_counter_ns())
        return iter(())

    monkeypatch.setattr(minimum, "replays", replays)
    records = judged(spec("mine", planted("one_step_early")), "slot_reuse", shrink_s=3600.0)
    assert 0 < asked[0] < 120e9
    assert records[-2]["type"] == "assignment"


def test_a_finding_arrives_before_shrinking_begins(monkeypatch):
    from rig.shell import Shell

    def dies(*_, **__):
        raise SystemExit("the process died")

    monkeypatch.setattr(minimum, "replays", dies)
    one = planned(scenario="slot_reuse", params=defaults("slot_reuse"), seed=3, shrink_s=5.0)
    shell = Shell(Worker(seat="s0", device="cpu", seed=7, apart=False), run="r", seat="s0", incarnation="i")
    batches = shell.run(one, spec("t", planted("one_step_early")))
    assert {record["type"] for record in next(batches)} == {"finding", "shrinking"}
    with pytest.raises(SystemExit):
        next(batches)


def test_a_lost_device_ends_shrinking(tmp_path):
    raises = "        if MARK.exists():\n            raise RuntimeError('CUDA error: an illegal access')\n"
    raises += "        MARK.touch()\n"
    source = planted("wrong_dtype").replace("        self._current = 0\n", f"        self._current = 0\n{raises}")
    source = f"import pathlib\nMARK = pathlib.Path({str(tmp_path / 'mark')!r})\n" + source
    worker = Worker(seat="s0", device="cpu", seed=7, apart=False)
    params = defaults("slot_reuse") | {"num_steps": 3, "num_pools": 1, "num_backed": 0}
    one = planned(scenario="slot_reuse", params=params, seed=3, shrink_s=30.0)
    bodies = list(worker.run(one, spec("t", source)))
    assert [body["type"] for body in bodies] == ["finding", "shrinking", "assignment"]
    assert bodies[-1]["verdict"] == "FAIL"
    assert list(worker.run(one, spec("staging")))[-1]["reason"].startswith("the device was lost in ")
