"""`retry: {infra: N}`: what infrastructure cost its seat runs once more elsewhere; what failed never does."""

from collections.abc import Sequence
from typing import Any

import pytest
from doubles import RUN, Tale, ToldCrew, ToldWorker, passed, planned

from rig.digest import digest
from rig.dispatch import Dispatch, Job, Lost
from rig.records import Record
from rig.retries import Retries
from rig.shell import Shell

PLAN = {seat: [planned(seat, cell=f"slot_reuse:staging:sim:n={n}") for n in range(3)] for seat in ("s0", "s1", "s2")}
S0 = [a["id"] for a in PLAN["s0"]]
GONE = Lost("s0", "INCOMPLETE", "its node died")
RETRY = {"backends": ["sim"], "reports": ["json"], "retry": {"infra": 1}}


def work(
    losses: dict[str, tuple[int, Lost]],
    *,
    infra: int = 1,
    kinds: Sequence[str] = ("cpu", "cpu", "gpu"),
    workers: dict[str, ToldWorker] | None = None,
    **more: Any,
) -> list[Record]:
    """All records of a dispatch over three seats, of which some are lost at their nth launch."""
    shells = {
        seat: Shell((workers or {}).get(seat, ToldWorker()), run=RUN, seat=seat, incarnation=f"i-{seat}")
        for seat in PLAN
    }
    jobs = {seat: [Job(subject="controls", timeout_s=5.0, backends=("sim",)), *own] for seat, own in JOBS.items()}
    records: list[Record] = []
    retries = Retries(dict(zip(PLAN, kinds, strict=True)), infra=infra)
    crew = ToldCrew(shells, losses=losses)
    Dispatch(crew, jobs, run=RUN, emit=records.extend, **{"stop": lambda: None} | more, retries=retries).work()
    assert len({r["id"] for r in records}) == len(records)
    return records


JOBS = {seat: [Job(subject=a["id"], timeout_s=10.0, assignment=a) for a in own] for seat, own in PLAN.items()}


def attempts(records: list[Record], id_: str) -> list[tuple[int, str, str]]:
    told = [r for r in records if r["type"] == "assignment" and r["assignment"] == id_]
    return [(r["attempt"], r["seat"], r["verdict"]) for r in told]


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_what_a_lost_seat_did_not_get_to_runs_once_more_on_a_live_seat_of_its_kind(at: int) -> None:
    records = work({"s0": (at, GONE)})
    done = max(0, at - 2)
    assert [attempts(records, id_) for id_ in S0[:done]] == [[(1, "s0", "PASS")]] * done
    again = [(1, "s0", "INCOMPLETE"), (2, "s1", "PASS")]
    assert [attempts(records, id_) for id_ in S0[done:]] == [again] * (3 - done)
    assert all(attempts(records, a["id"]) == [(1, seat, "PASS")] for seat in ("s1", "s2") for a in PLAN[seat])
    attempted = [r["id"].rsplit("/", 3)[1] for r in records if r["type"] == "assignment" and r["attempt"] == 2]
    assert attempted == ["2"] * (3 - done)


def test_what_the_seat_was_at_runs_last_since_it_may_have_killed_it() -> None:
    records = work({"s0": (2, GONE)})
    again = [r["assignment"] for r in records if r["type"] == "assignment" and r["attempt"] == 2]
    assert again == [S0[1], S0[2], S0[0]]


def test_without_retry_it_is_recorded_as_not_run() -> None:
    records = work({"s0": (2, GONE)}, infra=0)
    assert [attempts(records, id_) for id_ in S0] == [[(1, "s0", "INCOMPLETE")]] * 3


@pytest.mark.parametrize("verdict", ["FAIL", "HANG", "ERROR"])
def test_nothing_is_retried_after_a_failure(verdict: str) -> None:
    records = work({"s0": (3, Lost("s0", verdict, "it crashed"))})
    assert [attempts(records, id_) for id_ in S0] == [
        [(1, "s0", "PASS")],
        [(1, "s0", verdict)],
        [(1, "s0", "INCOMPLETE")],
    ]


def test_assignment_with_a_finding_is_not_retried() -> None:
    class Dies(ToldCrew):
        """s0 tells a finding of its first assignment, then it is gone."""

        def poll(self, timeout_s: float) -> Any:
            for event in super().poll(timeout_s):
                yield event
                if any(r["type"] == "finding" for r in getattr(event, "records", ())):
                    del self._working["s0"]
                    yield GONE

    found = {"type": "finding", "kind": "spill", "summary": "it spilt"}
    told = {S0[0]: [found] * 100}  # a full batch
    shells = {s: Shell(ToldWorker(told), run=RUN, seat=s, incarnation=f"i-{s}") for s in ("s0", "s1")}
    records: list[Record] = []
    retries = Retries({"s0": "cpu", "s1": "cpu"}, infra=1)
    jobs = {"s0": JOBS["s0"], "s1": JOBS["s1"]}
    Dispatch(Dies(shells), jobs, run=RUN, emit=records.extend, stop=lambda: None, retries=retries).work()
    assert attempts(records, S0[0]) == [(1, "s0", "INCOMPLETE")]
    assert attempts(records, S0[1]) == [(1, "s0", "INCOMPLETE"), (2, "s1", "PASS")]


def test_no_live_seat_of_the_kind_leaves_it_not_run() -> None:
    records = work({"s0": (2, GONE)}, kinds=("cpu", "gpu", "gpu"))
    assert [attempts(records, id_) for id_ in S0] == [[(1, "s0", "INCOMPLETE")]] * 3


class Poisoned(ToldCrew):
    """Whoever runs the first assignment of s0 is gone."""

    def launch(self, seat: str, job: Job) -> None:
        super().launch(seat, job)
        if job.subject == S0[0]:
            self._losses[seat] = (self._launched[seat], Lost(seat, "INCOMPLETE", "gone"))


@pytest.mark.parametrize("infra", [0, 1, 2])
def test_assignment_that_kills_its_seat_costs_as_many_as_it_has_attempts(infra: int) -> None:
    shells = {s: Shell(ToldWorker(), run=RUN, seat=s, incarnation=f"i-{s}") for s in PLAN}
    records: list[Record] = []
    retries = Retries(dict.fromkeys(PLAN, "cpu"), infra=infra)
    Dispatch(Poisoned(shells), JOBS, run=RUN, emit=records.extend, stop=lambda: None, retries=retries).work()
    assert [(n, v) for n, _, v in attempts(records, S0[0])] == [(n + 1, "INCOMPLETE") for n in range(infra + 1)]
    assert sum(r["type"] == "lost" for r in records) == infra + 1
    others = [a["id"] for own in PLAN.values() for a in own if a["id"] != S0[0]]
    passed_on = [id_ for id_ in others if attempts(records, id_)[-1][2] == "PASS"]
    assert passed_on == (others if infra else [id_ for id_ in others if id_ not in S0])


def test_interrupt_leaves_what_waits_for_its_second_attempt_not_run() -> None:
    readings = iter([None] * 4)
    records = work({"s0": (1, GONE)}, stop=lambda: next(readings, "interrupted by SIGINT"))
    assert all(attempts(records, a["id"])[0][0] == 1 for own in PLAN.values() for a in own)


def tale(verdict: str = "PASS", **run: Any) -> list[Record]:
    """s0 was lost during its only assignment, which then came to `verdict` on s1."""
    plan = [PLAN["s0"][0], PLAN["s1"][0]]
    told = Tale(plan, **{"config": RETRY} | run)
    told.add("lost", "driver", {"seat": "s0", "verdict": "INCOMPLETE", "during": S0[0], "reason": "its node died"})
    told.tell(plan[0], verdict="INCOMPLETE", incarnation="driver", reason="its node died")
    told.tell(plan[0], verdict=verdict, attempt=2, seat="s1").tell(plan[1])
    return told.ends()


def test_last_attempt_counts_and_both_are_shown() -> None:
    report = digest(tale())
    assert (report["verdict"], report["exit_code"], report["verdict_counts"]["PASS"]) == ("PASS", 0, 2)
    first, second = report["assignments"][0]["attempts"]
    assert (first["attempt"], first["seat"], first["verdict"], first["reason"]) == (
        1,
        "s0",
        "INCOMPLETE",
        "its node died",
    )
    assert (second["attempt"], second["seat"], second["verdict"]) == (2, "s1", "PASS")
    assert report["assignments"][0]["seat"] == "s1"
    assert report["coverage"]["checked_words_by"]["seat"] == {"s1": 20}
    assert "attempts" not in report["assignments"][1]
    assert [seat["verdict"] for seat in report["seats"]] == ["INCOMPLETE", "PASS"]
    assert any("seat s0 was lost" in reason for reason in report["run"]["reasons"])


@pytest.mark.parametrize("verdict", ["INCOMPLETE", "FAIL", "HANG"])
def test_second_attempt_may_end_badly(verdict: str) -> None:
    assert digest(tale(verdict))["verdict"] == verdict


@pytest.mark.parametrize(("num", "verdict"), [(1, "PASS"), (2, "INCOMPLETE")])
def test_expectation_holds_for_what_is_left(num: int, verdict: str) -> None:
    report = digest(tale(expect={"cpu_nodes": num, "gpus": 0}))
    assert report["verdict"] == verdict
    says = "expected at least 2 cpu_nodes, 1 of 2 were left at the end"
    assert (says in report["run"]["reasons"]) == (num == 2)


def test_finding_of_the_first_attempt_stands() -> None:
    told = Tale([PLAN["s0"][0], PLAN["s1"][0]], config=RETRY)
    told.records = tale()
    told._seq = iter(range(100, 200))  # type: ignore[assignment]
    told.find(PLAN["s0"][0], "spill")
    assert digest(told.records)["verdict"] == "FAIL"


def test_lost_seat_stays_incomplete_where_the_config_allows_no_retry() -> None:
    report = digest(tale(config=RETRY | {"retry": {"infra": 0}}))
    assert report["verdict"] == "INCOMPLETE"


def test_uncaught_control_of_a_lost_seat_still_counts() -> None:
    told = tale()
    control = next(r for r in told if r["type"] == "control" and r["seat"] == "s0")
    control["caught"] = False
    assert digest(told)["verdict"] == "INVALID"


@pytest.mark.parametrize(("seat", "verdict"), [("s0", "PASS"), ("s1", "INCOMPLETE")])
def test_unfinished_controls_matter_where_something_ran(seat: str, verdict: str) -> None:
    told = [r for r in tale() if not (r["type"] in ("control", "controls") and r["seat"] == seat)]
    assert digest(told)["verdict"] == verdict


def test_first_attempt_that_comes_to_light_later_is_not_counted_twice() -> None:
    told = tale()
    late = passed(PLAN["s0"][0]) | {"assignment": S0[0], "incarnation": "inc", "id": f"{RUN}/{S0[0]}/1/inc/99"}
    report = digest([*told, late])
    assert (report["verdict"], report["coverage"]["checked_words"]) == ("PASS", 20)
    assert [a["verdict"] for a in report["assignments"][0]["attempts"]] == ["PASS", "PASS"]
