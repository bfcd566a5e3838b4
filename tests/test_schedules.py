"""Cells under several schedules of the virtual device: what that finds, how it is replayed, when it ends."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cells import CPU, exhausted, judged, spec
from found import counted, shown, written
from found import judged as records_of
from targets.faults import PLAIN
from targets.moments import BETWEEN, EARLY

from rig import ops, registry, schedules
from rig.controls import defaults
from rig.drive import Progress
from rig.judge import Cell, verify
from rig.loading import loaded

TINY = {"num_pools": 1, "num_backed": 1, "copies_every": 0, "prefix_every": 0, "num_steps": 3, "rows": 8}
FOUND = {"random": 40, "pct": 40, "exhaustive": 400}


def cell_of(scenario="slot_reuse", *, seed=1, backend="sim", **params):
    return Cell(
        scenario=scenario, params=defaults(scenario) | params, backend=backend, device=CPU, seed=seed, seat="s0"
    )


def passed(cell, source=None, *, progress=None):
    """One verify pass: of a file's source, else of our library."""
    with loaded(spec("t" if source else "staging", source), device=CPU) as module:
        return exhausted(verify(cell, module, progress=progress or Progress()))


def ran(judgement):
    counts = judgement.result.checked.counts
    return {key: counts[key] for key in ("schedules", "orders", "exhausted") if counts[key]}


TWO_POOLS = TINY | {"num_pools": 2}


@pytest.mark.parametrize(
    ("source", "params", "at_once"),
    [(EARLY, TINY, {"stale_alias"}), (BETWEEN, TWO_POOLS, set())],
    ids=["early", "between"],
)
@pytest.mark.parametrize("seed", range(4))
def test_late_misses_what_is_right_for_late_readers_and_the_others_find_it(source, params, at_once, seed):
    late = passed(cell_of(seed=seed, schedule="late", schedules=20, **params), source)
    assert (late.found, ran(late)) == ([], {"schedules": 20, "orders": 1})
    assert passed(cell_of(seed=seed, backend="cpu", **params), source).kinds == at_once
    for schedule, bound in FOUND.items():
        judgement = passed(cell_of(seed=seed, schedule=schedule, schedules=bound, **params), source)
        (finding,) = judgement.found
        assert finding.kind == "stale_alias"
        assert f"; {schedule} schedule {ran(judgement)['schedules'] - 1}" in finding.summary


def test_exhaustive_proves_the_clean_twin_clean():
    judgement = passed(cell_of(schedule="exhaustive", schedules=2000, **TINY | {"num_steps": 2}), PLAIN)
    assert not judgement.found
    assert ran(judgement)["exhausted"] == 1
    for schedule in ("random", "pct"):
        judgement = passed(cell_of(schedule=schedule, schedules=40, **TWO_POOLS), PLAIN)
        assert (judgement.found, ran(judgement)["schedules"]) == ([], 40)
        assert ran(judgement)["orders"] > 4


OWN = {"depth": 2, "num_pools": 1, "num_backed": 0, "copies_every": 0, "prefix_every": 0, "num_steps": 3, "rows": 4}


def test_our_pool_is_right_in_every_order_of_a_small_cell():
    judgement = passed(cell_of(schedule="exhaustive", schedules=5000, streams=2, **OWN))
    assert not judgement.found
    assert ran(judgement)["exhausted"] == 1
    assert ran(judgement)["orders"] == ran(judgement)["schedules"] > 500
    deep = (
        {"streams": 2, "in_flight": 4} | OWN | {"depth": 1}
    )  # where the guard has to wait for readers on both streams
    judgement = passed(cell_of(schedule="exhaustive", schedules=5000, **deep))
    assert (judgement.found, ran(judgement)["exhausted"]) == ([], 1)
    fault = judged("slot_reuse", "faulty:unfenced_reuse", "sim", schedule="exhaustive", beyond_contract=True, **deep)
    assert fault.kinds == {"slot_reuse"}


def test_a_bounded_search_says_so_and_goes_on_from_its_choices():
    whole, histories, choices = passed(cell_of(schedule="exhaustive", schedules=1000, **OWN)), [], ""
    assert (whole.result.note, ran(whole)["exhausted"]) == (None, 1)
    while choices is not None:
        part = passed(cell_of(schedule="exhaustive", schedules=9, choices=choices, **OWN))
        histories += part.result.histories
        note = part.result.note
        choices = note and note.removeprefix("not every order was tried; choices=").removesuffix(" goes on")
        assert ("exhausted" in ran(part)) == (choices is None)
    assert histories == whole.result.histories
    assert 9 < len(histories) < 100


@pytest.mark.parametrize("schedule", FOUND)
def test_the_schedule_that_a_finding_names_shows_it_alone(schedule):
    cell = cell_of(seed=2, schedule=schedule, schedules=FOUND[schedule], **TINY)
    (finding,) = passed(cell, EARLY).found
    alone = replace(cell, params={**cell.params, **finding.alone})
    assert alone.params["schedules"] == 1
    for _ in range(5):
        judgement = passed(alone, EARLY)
        assert [replace(finding, summary="", alone=None)] == [replace(f, summary="") for f in judgement.found]
        assert finding.summary.startswith(judgement.found[0].summary)
        assert ran(judgement) == {}
    other = replace(alone, params={**alone.params, "schedule": "late", "choices": ""})
    assert not passed(other, EARLY).found


@pytest.mark.parametrize("schedule", FOUND)
def test_it_is_shrunk_and_replayed_under_one_schedule(schedule, tmp_path, capsys):
    params = TINY | {"schedule": schedule, "schedules": FOUND[schedule]}
    _, files = written(tmp_path, records_of(spec("mine", EARLY), "slot_reuse", **params))
    ((path, failure),) = files
    assert failure["params"]["schedules"] == 1
    assert 1 <= len(counted(failure)) <= 8
    code, lines = shown(capsys, path, "--times", 20)
    assert (code, lines[-1]) == (1, "reproduced 20 of 20")
    (tmp_path / "fixed.py").write_text(PLAIN)
    assert shown(capsys, path, "--target", tmp_path / "fixed.py")[0] == 0


def test_choices_of_another_cell_are_no_verdict():
    judgement = passed(cell_of(schedule="exhaustive", schedules=4, choices="x", **OWN))
    assert judgement.result.skip.startswith("the choices are not of this cell: choice 0 is 'x'")
    assert ran(judgement) == {"schedules": 1, "orders": 1}


@pytest.mark.parametrize("schedule", ["late", "random"])
def test_the_first_of_several_schedules_is_what_a_single_one_is(schedule):
    params = {"schedule": schedule, "num_steps": 9, "streams": 2}
    one, several = (passed(cell_of(**params, schedules=n)).result.checked for n in (1, 2))
    assert "schedules" not in one.coverage()
    assert several.words == 2 * one.words
    assert several.counts["reads"] == 2 * one.counts["reads"]
    assert schedules.seed_of(5, 0) == 5
    assert len({schedules.seed_of(seed, number) for seed in (5, 6) for number in range(50)}) == 100


def test_a_cell_on_another_backend_runs_once():
    judgement = passed(cell_of(backend="cpu", schedule="pct", schedules=9, num_steps=5))
    assert judgement.result.checked.counts["step"] == 5
    assert ran(judgement) == {}
    wrong = cell_of(backend="cpu", schedule="pct", schedules=9, num_steps=5)
    (finding, *_) = passed(wrong, PLAIN.replace("slot.cpu[: len(x)] = x\n", "slot.cpu[: len(x)] = x + 1\n")).found
    assert (finding.alone, "schedule" in finding.summary) == (None, False)


def test_a_cell_beyond_contract_is_skipped_once_and_exhausts_nothing():
    judgement = passed(cell_of(schedule="exhaustive", schedules=9, in_flight=3, **OWN), PLAIN)
    assert judgement.result.skip.startswith("beyond contract")
    assert ran(judgement) == {"schedules": 1, "orders": 1}


def test_the_deadline_is_kept_between_schedules():
    short = (ops.Make(name="p", what="pool", size=4, depth=2), ops.Publish(name="p", num_rows=4), ops.Read(name="p"))
    cell = replace(cell_of(schedule="random", schedules=9, **OWN), ops=short)  # without a step, where a pass looks
    judgement = passed(cell, progress=Progress(deadline_ns=1))
    assert judgement.result.hang == "the time was up after 1 of 9 schedules"
    assert ran(judgement)["schedules"] == 1
    assert passed(cell).result.hang is None


def test_a_ledger_is_kept_under_each_schedule():
    one, three = (
        judged("slot_reuse", "staging", "sim", ledger=True, schedule="pct", schedules=n, num_steps=6) for n in (1, 3)
    )
    assert not three.found
    assert three.result.ledger["ledger_events"] > 2 * one.result.ledger["ledger_events"]


@pytest.mark.parametrize("schedule", ["pct", "exhaustive"])
def test_a_timed_pass_takes_the_first_schedule(schedule):
    judgement = judged("slot_reuse", "staging", "sim", timed=True, schedule=schedule, schedules=9, num_steps=5)
    assert not judgement.found
    assert judgement.result.measure.latency()["publish"]["n"] > 5


@pytest.mark.parametrize("scenario", ["slot_reuse", "growth", "ragged_writes", "fused_apply", "backed_tensors"])
@pytest.mark.parametrize("streams", [1, 2])
def test_pct_is_told_about_how_many_steps_there_are(scenario, streams, monkeypatch):
    """Not too few, or its changes would never come late in a pass; nor far too many, or they would hardly ever come."""
    told, end = [], schedules.Schedules.end

    def ends(self, *, is_clean):
        told.append((self._schedule.num_steps, self._num_steps))
        return end(self, is_clean=is_clean)

    monkeypatch.setattr(schedules.Schedules, "end", ends)
    for target in ("staging", "plain"):
        params = {"schedule": "pct", "schedules": 2, "num_steps": 8, "streams": streams}
        assert not judged(scenario, target, "sim", **params).found
    assert len(told) == 4
    assert all(steps <= expected <= 3.5 * steps for steps, expected in told), told


def test_every_scenario_with_a_schedule_takes_them_all():
    for name in registry.names("scenarios"):
        params = registry.load("scenarios", name).PARAMS
        if "schedule" in params:
            assert {"schedules", "schedule_first", "choices"} <= set(params)
            assert not [kind for kind in (*FOUND, "late") if params["schedule"].problem(kind)]


def test_processes_with_other_hash_seeds_give_the_same_histories_and_records():
    tests = Path(__file__).parent
    path = os.pathsep.join([str(tests.parent), str(tests)])
    runs = [
        subprocess.Popen(
            [sys.executable, str(tests / "schedule_runs.py")],
            env=dict(os.environ, PYTHONHASHSEED=hash_seed, PYTHONPATH=path),
            stdout=subprocess.PIPE,
        )
        for hash_seed in ("1", "2")
    ]
    told = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    one, other = ([json.loads(line) for line in text.splitlines()] for text in told)
    planted = [cell["target"] == "hashed" and cell["scenario"] != "fused_apply" for cell in one]  # a fault of pools
    assert [a != b for a, b in zip(one, other, strict=True)] == planted
    assert (planted.count(False), planted.count(True)) == (13, 3)
    assert all(cell["histories"] for cell in one)
    assert {record["type"] for cell in one for record in cell["records"]} >= {"assignment", "finding", "replay"}
