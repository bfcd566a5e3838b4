"""Whatever happens to a seat, each planned assignment ends in one record."""

from typing import Any

import pytest
from doubles import CELL, RUN, ToldCrew, ToldWorker, passed, planned

from rig import dispatch
from rig.dispatch import Dispatch, Job, Lost
from rig.records import Record
from rig.shell import Shell

PLAN = {seat: [planned(seat, cell=f"{CELL},n={n}") for n in range(3)] for seat in ("s0", "s1")}
SUSPECT = PLAN["s0"][0]


class Clock:
    """Seconds that pass by themselves: one per reading."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def work(
    workers: dict[str, ToldWorker] | None = None,
    *,
    controls: bool = True,
    crew: dict[str, Any] | None = None,
    **more: Any,
) -> tuple[list[Record], ToldCrew]:
    """All records of a dispatch over two seats with three assignments each."""
    shells = {
        seat: Shell((workers or {}).get(seat, ToldWorker()), run=RUN, seat=seat, incarnation=f"i-{seat}")
        for seat in PLAN
    }
    jobs = {
        seat: [Job(subject=a["id"], timeout_s=a["timeout_s"], assignment=a) for a in own] for seat, own in PLAN.items()
    }
    if controls:
        jobs = {seat: [Job(subject="controls", timeout_s=5.0, backends=("sim",)), *own] for seat, own in jobs.items()}
    told = ToldCrew(shells, **(crew or {}))
    records: list[Record] = []
    Dispatch(told, jobs, run=RUN, emit=records.extend, **{"stop": lambda: None} | more).work()
    return records, told


def ends(records: list[Record]) -> dict[str, str]:
    told = [(r["assignment"], r["verdict"]) for r in records if r["type"] == "assignment"]
    assert len(told) == len(dict(told)), "one record per assignment"
    return dict(told)


def expected(seat: str, *verdicts: str) -> dict[str, str]:
    return {a["id"]: verdict for a, verdict in zip(PLAN[seat], verdicts, strict=True)}


PASSES = ("PASS", "PASS", "PASS")


def test_every_assignment_of_every_seat_is_recorded_and_ids_are_unique() -> None:
    records, _ = work()
    assert ends(records) == expected("s0", *PASSES) | expected("s1", *PASSES)
    assert len({r["id"] for r in records}) == len(records)
    assert [r["num"] for r in records if r["type"] == "controls"] == [0, 0]


@pytest.mark.parametrize(("verdict", "kinds"), [("INCOMPLETE", []), ("FAIL", ["exception"]), ("ERROR", [])])
def test_lost_seat_ends_its_job_as_lost_and_the_rest_incomplete(verdict: str, kinds: list[str]) -> None:
    records, _ = work(crew={"losses": {"s0": (3, Lost("s0", verdict, "it crashed\nsomewhere"))}})
    assert ends(records) == expected("s0", "PASS", verdict, "INCOMPLETE") | expected("s1", *PASSES)
    assert [r["kind"] for r in records if r["type"] == "finding"] == kinds
    left = next(r for r in records if r.get("assignment") == PLAN["s0"][2]["id"])
    assert left["reason"] == f"seat s0 was lost during {PLAN['s0'][1]['id']}: it crashed"


def test_crash_during_controls_is_not_blamed_on_the_target() -> None:
    records, _ = work(crew={"losses": {"s0": (1, Lost("s0", "FAIL", "segmentation fault"))}})
    assert ends(records) == expected("s0", *["INCOMPLETE"] * 3) | expected("s1", *PASSES)
    assert [r["verdict"] for r in records if r["type"] == "lost"] == ["INCOMPLETE"]


def test_deadline_is_a_hang_with_the_stacks_of_all_seats() -> None:
    records, crew = work(crew={"silent": {"s0"}}, controls=False, clock=Clock())
    assert ends(records) == expected("s0", "HANG", "INCOMPLETE", "INCOMPLETE") | expected("s1", *PASSES)
    assert crew.num_stacks_saved == 1
    assert [r["kind"] for r in records if r["type"] == "finding"] == ["hang"]
    assert "no end within timeout_s = 10" in next(r for r in records if r["type"] == "lost")["reason"]


def test_missing_heartbeat_is_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "HEARTBEAT_S", 3.0)
    records, _ = work(crew={"silent": {"s0"}}, controls=False, clock=Clock())
    assert "no sign of life for 3 s" in next(r for r in records if r["type"] == "lost")["reason"]


def test_hang_that_the_worker_noticed_saves_stacks_and_goes_on() -> None:
    told = ToldWorker({SUSPECT["id"]: [passed(SUSPECT, verdict="HANG")]})
    records, crew = work({"s0": told})
    assert ends(records) == expected("s0", "HANG", "PASS", "PASS") | expected("s1", *PASSES)
    assert crew.num_stacks_saved == 1


def test_stop_leaves_incomplete_records_with_the_reason() -> None:
    readings = iter([None, None, None, "interrupted by SIGINT"])
    records, _ = work(stop=lambda: next(readings))
    assert set(ends(records)) == {a["id"] for own in PLAN.values() for a in own}
    assert {r["reason"] for r in records if r.get("verdict") == "INCOMPLETE"} == {"interrupted by SIGINT"}


def test_fail_fast_stops_at_the_first_failure() -> None:
    told = ToldWorker({SUSPECT["id"]: [passed(SUSPECT, verdict="FAIL")]})
    records, _ = work({"s0": told}, fail_fast=True)
    assert ends(records)[SUSPECT["id"]] == "FAIL"
    assert any(r.get("reason", "").startswith("not run: --fail-fast after") for r in records)
    assert set(ends(records)) == {a["id"] for own in PLAN.values() for a in own}


@pytest.mark.parametrize(
    ("bodies", "says"),
    [
        ([ValueError("of the rig")], "ValueError: of the rig"),
        ([], "the worker ended without an assignment record"),
        ([{"type": "finding", "kind": "leak", "value": float("nan")}], "ValueError"),
        ([{"type": "finding", "kind": "leak", "value": object()}], "TypeError"),
    ],
)
def test_worker_that_breaks_its_promise_is_an_error_of_the_rig(bodies: list[Any], says: str) -> None:
    records, _ = work({"s0": ToldWorker({SUSPECT["id"]: bodies})})
    assert ends(records) == expected("s0", "ERROR", "PASS", "PASS") | expected("s1", *PASSES)
    assert says in next(r for r in records if r.get("verdict") == "ERROR")["reason"]


def test_controls_that_crash_in_the_rig_are_an_error_and_unfinished() -> None:
    records, _ = work({"s0": ToldWorker(controls=[RuntimeError("of the rig")])})
    assert [r["verdict"] for r in records if r["type"] == "lost"] == ["ERROR"]
    assert [r["seat"] for r in records if r["type"] == "controls"] == ["s1"]


def test_many_findings_arrive_in_batches() -> None:
    findings = [{"type": "finding", "kind": "spill", "n": n} for n in range(250)]
    shell = Shell(ToldWorker({SUSPECT["id"]: [*findings, passed(SUSPECT)]}), run=RUN, seat="s0", incarnation="i")
    sizes = [len(batch) for batch in shell.run(SUSPECT, {})]
    assert sizes == [100, 100, 51]
