"""What `rig doctor` makes of the facts, each piece of advice with a case and a clean twin, and the command itself."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from doctor_cases import CRASHED, HUNG, LAPTOP, NOTES, PROBLEMS, SERVER, changed, proved

from rig import doctor, registry
from rig.doctor_tables import show
from rig.machine import MEMORY_KINDS

ROOT = Path(__file__).resolve().parent.parent


def findings(facts, changes=()):
    return [tuple(finding) for finding in doctor.diagnose(changed(facts, dict(changes)))]


@pytest.mark.parametrize(
    ("level", "case"), [*(("problem", case) for case in PROBLEMS), *(("note", case) for case in NOTES)]
)
def test_each_trouble_is_told_once_with_what_to_do_and_its_clean_twin_is_not(level, case):
    facts, amiss, says, *twin = case
    usual, (what, do) = findings(facts), says.split(" -> ")
    told = [finding for finding in findings(facts, amiss) if finding not in usual]
    assert [finding[0] for finding in told] == [level], told
    assert what in told[0][1]
    assert do in told[0][2]
    assert doctor.report(changed(facts, amiss))["exit_code"] == (4 if level == "problem" else 0)
    clean = changed(facts, *twin) if twin else facts
    assert not [finding for finding in findings(clean) if what in finding[1]]
    assert doctor.report(clean)["exit_code"] == 0


def test_a_laptop_is_well_and_told_why_it_has_no_gpu_backends():
    assert [finding[0] for finding in findings(LAPTOP)] == ["note"]
    assert "(--gpus all)" in findings(LAPTOP, {"machine.container": "docker"})[0][2]
    assert findings(SERVER) == []


def test_a_machine_on_which_only_sim_works_is_not_well():
    facts = changed(
        LAPTOP, {"backends.cpu": ("untried", "not reached: x"), "torch": {"state": "ok", "reason": "not reached: x"}}
    )
    assert findings(facts) == findings(LAPTOP), "nothing is left to say but"
    assert doctor.report(facts)["exit_code"] == 4


def test_a_torch_that_crashes_is_one_problem_however_many_proofs_it_takes_down():
    dead = dict(zip(("state", "reason"), CRASHED, strict=True))
    facts = changed(LAPTOP, {"torch": dead, **{f"backends.{one['name']}": CRASHED for one in LAPTOP["backends"]}})
    assert [finding[0] for finding in findings(facts)] == ["problem", "note"]


def test_backends_that_fail_alike_on_many_gpus_are_one_problem():
    facts = copy.deepcopy(SERVER)
    for index in range(1, 5):
        facts["backends"] += proved("name", ["cuda_copy", "cuda_uva"], f"gpu {index}", *HUNG)
    (one,) = findings(facts)
    assert one[1].startswith("cuda_copy and cuda_uva failed on gpu 1, gpu 2, gpu 3 and 1 more: no answer")


def test_every_rule_has_a_case():
    used = {
        rule.__name__
        for rule in doctor._RULES
        for facts, amiss, *_ in (*PROBLEMS, *NOTES)
        if list(rule(changed(facts, amiss)))
    }
    assert used == {rule.__name__ for rule in doctor._RULES}
    assert f"ray[default]=={doctor.RAY}.*" in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("facts", [LAPTOP, SERVER])
@pytest.mark.parametrize("amiss", [{}, {"backends.cpu": HUNG}, {"software.ray": None, "machine.memlock_bytes": None}])
def test_what_people_read_is_plain_and_narrow_without_a_terminal(facts, amiss, capsys):
    told = doctor.report(changed(facts, amiss) | {"torch": {"state": "ok", "reason": ""}})
    show(told)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 100
    for finding in told["findings"]:
        assert " ".join(finding["do"].split()) in " ".join(out.split())
    assert out.splitlines()[-1].startswith("well; usable: cpu" if told["exit_code"] == 0 else "1 problem; usable:")


def run_doctor(*arguments, **env):
    command = [sys.executable, "-m", "rig", "doctor", *arguments]
    return subprocess.run(command, cwd=ROOT, env=os.environ | env, capture_output=True, text=True, timeout=60)


def test_the_command_answers_on_this_machine_in_json():
    process = run_doctor("--json", CUDA_VISIBLE_DEVICES="")
    told = json.loads(process.stdout)
    assert (process.stderr, told["schema"]) == ("", 1)
    assert process.returncode == told["exit_code"]
    assert {one["name"] for one in told["backends"]} == set(registry.backends())
    assert [one["kind"] for one in told["memory"]] == list(MEMORY_KINDS)
    assert {one["name"]: one["state"] for one in told["backends"]}["cpu"] == "ok"
    assert set(told) == set(LAPTOP) | {"schema", "findings", "exit_code"}
    assert set(told["machine"]) == set(LAPTOP["machine"])


def test_a_proof_that_crashes_is_shown_and_does_not_crash_the_command(tmp_path):
    code = "import os, sys\nif 'rig.prove' in sys.orig_argv: os.kill(os.getpid(), 11)\n"
    (tmp_path / "sitecustomize.py").write_text(code)
    process = run_doctor(PYTHONPATH=str(tmp_path))
    assert (process.returncode, process.stderr) == (4, "")
    assert "! torch could not be asked: its process crashed with SIGSEGV" in process.stdout
    assert "Traceback" not in process.stdout
