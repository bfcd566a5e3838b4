"""Each row of the verdict table, each rule of the lattice, and that nothing but the records counts."""

import itertools
import random
from typing import Any

import pytest
from doubles import CELL, Tale, latency, passed, planned

from rig.digest import digest
from rig.lattice import ORDER, worst
from rig.verdict import judge

ONE = planned()
TWO = [planned("s0"), planned("s1")]


def verdict(records: list[dict[str, Any]]) -> tuple[str, int]:
    told = judge(records)
    return told.verdict, told.exit_code


@pytest.mark.parametrize(("better", "worse"), [*itertools.pairwise(ORDER)])
def test_worse_verdict_wins_in_any_order(better: str, worse: str) -> None:
    assert worst([better, worse]) == worst([worse, better]) == worse


def test_clean_run_passes_without_reasons() -> None:
    told = judge(Tale([ONE]).tell(ONE).ends())
    assert (told.verdict, told.exit_code, told.reasons) == ("PASS", 0, ())
    assert told.counts["PASS"] == 1


@pytest.mark.parametrize(
    ("worker_says", "run_is"),
    [
        ("SKIP", ("SKIP", 4)),
        ("PASS", ("PASS", 0)),
        ("INCOMPLETE", ("INCOMPLETE", 4)),
        ("FAIL", ("FAIL", 1)),
        ("HANG", ("HANG", 5)),
        ("ERROR", ("ERROR", 70)),
    ],
)
def test_only_assignment_decides_the_run(worker_says: str, run_is: tuple[str, int]) -> None:
    assert verdict(Tale([ONE]).tell(ONE, verdict=worker_says).ends()) == run_is


@pytest.mark.parametrize("other", ORDER)
def test_worst_of_two_assignments_is_the_run(other: str) -> None:
    tale = Tale(TWO).tell(TWO[0]).tell(TWO[1], verdict=other)
    assert judge(tale.ends()).verdict == worst(["PASS", other])


@pytest.mark.parametrize(
    ("kind", "exit_code"), [("slot_reuse", 1), ("leak", 1), ("exception", 1), ("dtype", 1), ("latency", 3)]
)
def test_pass_beside_a_finding_is_a_fail(kind: str, exit_code: int) -> None:
    assert verdict(Tale([ONE]).find(ONE, kind).tell(ONE).ends()) == ("FAIL", exit_code)


def test_finding_alone_fails_an_assignment_that_never_ended() -> None:
    told = judge(Tale([ONE]).find(ONE, "slot_reuse").ends())
    assert (told.verdict, told.exit_code) == ("FAIL", 1)
    assert told.assignments[0]["reason"] == "no record"


@pytest.mark.parametrize("mode", ["verify", "both"])
def test_zero_checked_words_is_a_skip(mode: str) -> None:
    one = planned(mode=mode)
    told = judge(Tale([one]).tell(one, checked_words=0).ends())
    assert (told.verdict, told.exit_code) == ("SKIP", 4)
    assert told.assignments[0]["reason"] == "zero checked words"


@pytest.mark.parametrize(("samples", "run_is"), [((5, 6), ("PASS", 0)), ((), ("SKIP", 4))])
def test_measure_passes_on_samples(samples: tuple[int, ...], run_is: tuple[str, int]) -> None:
    one = planned(mode="measure")
    assert verdict(Tale([one]).tell(one, checked_words=0, latency=latency("publish", *samples)).ends()) == run_is


def test_one_pass_among_skips_passes() -> None:
    assert verdict(Tale(TWO).tell(TWO[0], verdict="SKIP").tell(TWO[1]).ends()) == ("PASS", 0)


@pytest.mark.parametrize(("bound_us", "exit_code"), [(10.0, 0), (2.0, 3)])
def test_limit_is_judged_on_the_histogram_merged_over_seats(bound_us: float, exit_code: int) -> None:
    plan = [planned(seat, mode="both", limits={"publish_us_p50_max": bound_us}) for seat in ("s0", "s1")]
    tale = Tale(plan)
    tale.tell(plan[0], latency=latency("publish", 1000, 1000)).tell(plan[1], latency=latency("publish", *[4000] * 3))
    told = judge(tale.ends())
    assert told.exit_code == exit_code
    assert [a["verdict"] for a in told.assignments] == (["PASS", "FAIL"] if exit_code else ["PASS", "PASS"])
    assert [f["assignment"] for f in told.findings] == ([plan[1]["id"]] if exit_code else [])


def test_broken_limit_beside_wrong_data_is_exit_one() -> None:
    plan = [planned("s0", mode="both", limits={"publish_us_max_max": 1}), planned("s1", cell=f"{CELL},rows=1")]
    tale = Tale(plan).tell(plan[0], latency=latency("publish", 9000)).find(plan[1], "spill").tell(plan[1])
    assert verdict(tale.ends()) == ("FAIL", 1)


def test_broken_limit_beside_something_incomplete_is_not_only_a_limit() -> None:
    plan = [planned("s0", mode="both", limits={"publish_us_max_max": 1}), planned("s1", cell=f"{CELL},rows=1")]
    tale = Tale(plan).tell(plan[0], latency=latency("publish", 9000)).tell(plan[1], verdict="INCOMPLETE")
    assert verdict(tale.ends()) == ("FAIL", 1)


def test_limit_without_samples_is_incomplete() -> None:
    one = planned(mode="both", limits={"apply_us_p99_max": 5})
    told = judge(Tale([one]).tell(one, latency=latency("publish", 5)).ends())
    assert (told.verdict, told.exit_code) == ("INCOMPLETE", 4)
    assert "no samples of 'apply'" in told.assignments[0]["reason"]


def test_uncaught_control_is_invalid_and_named() -> None:
    tale = Tale([ONE]).tell(ONE)
    next(r for r in tale.records if r["type"] == "control")["caught"] = False
    told = judge(tale.ends())
    assert (told.verdict, told.exit_code) == ("INVALID", 6)
    assert "control unfenced_reuse on s0 (sim) was not caught as slot_reuse" in told.reasons[0]
    assert told.seats[0]["verdict"] == "INVALID"


def test_control_that_was_not_tried_is_incomplete() -> None:
    tale = Tale([ONE]).tell(ONE)
    next(r for r in tale.records if r["type"] == "control")["caught"] = None
    assert verdict(tale.ends()) == ("INCOMPLETE", 4)


@pytest.mark.parametrize("gone", ["control", "controls"])
def test_controls_that_did_not_finish_are_incomplete(gone: str) -> None:
    records = Tale([ONE]).tell(ONE).ends()
    assert verdict([r for r in records if r["type"] != gone]) == ("INCOMPLETE", 4)


def test_pass_on_a_backend_without_any_control_is_incomplete() -> None:
    one = planned(backend="cpu")
    told = judge(Tale([one]).tell(one).ends())
    assert (told.verdict, told.reasons) == ("INCOMPLETE", ("no control was tried on backend cpu of s0",))


def test_controls_that_were_switched_off_are_not_missed() -> None:
    told = judge(Tale([ONE], controls=False).tell(ONE).ends())
    assert (told.verdict, told.exit_code) == ("PASS", 0)
    assert told.reasons == ("controls were off: no planted fault was tried on any seat",)


def test_controls_that_were_switched_off_make_no_skip_a_pass() -> None:
    assert verdict(Tale([ONE], controls=False).tell(ONE, verdict="SKIP").ends()) == ("SKIP", 4)


def test_planned_assignment_without_a_record_is_incomplete() -> None:
    assert verdict(Tale(TWO).tell(TWO[0]).ends()) == ("INCOMPLETE", 4)


def test_run_without_an_end_is_incomplete() -> None:
    assert verdict(Tale([ONE]).tell(ONE).records) == ("INCOMPLETE", 4)


@pytest.mark.parametrize(("expect", "run_is"), [(1, ("PASS", 0)), (2, ("INCOMPLETE", 4))])
def test_fewer_nodes_than_expected_are_incomplete(expect: int, run_is: tuple[str, int]) -> None:
    assert verdict(Tale([ONE], expect={"cpu_nodes": expect, "gpus": 0}).tell(ONE).ends()) == run_is


def test_cluster_without_seats_is_incomplete() -> None:
    told = judge(Tale([]).ends())
    assert (told.verdict, told.exit_code) == ("INCOMPLETE", 4)
    assert told.reasons == (
        "expected at least 1 cpu_nodes, found 0",
        "no seat: there is no GPU, or no node with CPUs, that the config asks for",
    )


def test_seat_that_never_became_ready_is_incomplete() -> None:
    records = [r for r in Tale(TWO).tell(TWO[0]).tell(TWO[1]).ends() if not (r["type"] == "seat" and r["seat"] == "s1")]
    told = judge(records)
    assert told.verdict == "INCOMPLETE"
    assert "seat s1 did not become ready" in told.reasons


@pytest.mark.parametrize("lost", ["INCOMPLETE", "FAIL", "HANG"])
def test_lost_seat_makes_the_run_at_least_what_it_was_lost_as(lost: str) -> None:
    tale = Tale([ONE]).tell(ONE)
    tale.add("lost", "driver", {"seat": "s0", "verdict": lost, "during": ONE["id"], "reason": "gone"})
    assert judge(tale.ends()).verdict == lost


@pytest.mark.parametrize("missing", ["the disk is full", "the seats were not free within wait_s = 3"])
def test_what_the_driver_missed_is_incomplete(missing: str) -> None:
    told = judge(Tale([ONE]).tell(ONE).ends(missing=[missing]))
    assert (told.verdict, told.exit_code, told.reasons) == ("INCOMPLETE", 4, (missing,))


@pytest.mark.parametrize("signal", ["SIGINT", "SIGTERM"])
def test_interrupted_run_is_incomplete_with_exit_130(signal: str) -> None:
    assert verdict(Tale([ONE]).tell(ONE).ends(interrupted=signal)) == ("INCOMPLETE", 130)


def test_interrupt_hides_no_failure() -> None:
    assert verdict(Tale([ONE]).find(ONE, "spill").tell(ONE).ends(interrupted="SIGINT")) == ("FAIL", 130)


def test_exception_of_the_driver_is_an_error() -> None:
    told = judge(Tale([ONE]).tell(ONE).ends(error="Traceback ...\nValueError: no"))
    assert (told.verdict, told.exit_code, told.reasons) == ("ERROR", 70, ("the rig failed: ValueError: no",))


def test_two_seats_on_one_gpu_are_an_error() -> None:
    tale = Tale(TWO).tell(TWO[0]).tell(TWO[1])
    for record in tale.records:
        if record["type"] == "seat":
            record["uuid"] = "GPU-1"
    told = judge(tale.ends())
    assert (told.verdict, told.exit_code) == ("ERROR", 70)
    assert told.reasons == ("seats s0 and s1 are on one GPU, GPU-1",)


@pytest.mark.parametrize("what", ["ray", "python", "gpu"])
def test_unlike_machines_are_incomplete(what: str) -> None:
    tale = Tale(TWO).tell(TWO[0]).tell(TWO[1])
    for number, record in enumerate(r for r in tale.records if r["type"] == "seat"):
        (record["environment"] if what == "gpu" else record["versions"])[what] = f"v{number}"
    assert judge(tale.ends()).reasons == (f"seats differ in {what}: v0 and v1",)


def test_same_record_twice_is_dropped_and_counted() -> None:
    records = Tale([ONE]).tell(ONE).ends()
    told = judge([*records, *records[2:4]])
    assert (told.verdict, told.num_duplicates) == ("PASS", 2)


def test_same_id_with_other_bytes_is_an_error() -> None:
    records = Tale([ONE]).tell(ONE).ends()
    told = judge([*records, records[-2] | {"checked_words": 11}])
    assert (told.verdict, told.exit_code) == ("ERROR", 70)


def test_record_that_was_not_planned_is_an_error() -> None:
    assert verdict(Tale([ONE]).tell(ONE).tell(planned(cell="other")).ends()) == ("ERROR", 70)


def test_stale_incarnation_is_counted_and_not_judged() -> None:
    told = judge(Tale([ONE]).tell(ONE, incarnation="old", verdict="FAIL").tell(ONE).ends())
    assert (told.verdict, told.num_stale) == ("PASS", 1)


def test_last_attempt_counts() -> None:
    told = judge(Tale([ONE]).tell(ONE, verdict="INCOMPLETE").tell(ONE, attempt=2).ends())
    assert (told.verdict, told.assignments[0]["attempt"]) == ("PASS", 2)


def test_order_of_records_does_not_matter() -> None:
    tale = Tale(TWO).find(TWO[1], "spill").find(TWO[0], "slot_reuse").tell(TWO[1]).tell(TWO[0])
    records = tale.ends()
    first = digest(records)
    for seed in range(5):
        shuffled = random.Random(seed).sample(records, len(records))
        assert digest(shuffled) == first


def test_digest_has_the_promised_keys() -> None:
    report = digest(Tale([ONE]).find(ONE, "spill").tell(ONE, coverage={"publishes": 3}).ends())
    assert set(report) == {
        *("schema", "run", "verdict", "exit_code", "verdict_counts", "seats", "controls", "assignments", "findings"),
        *("coverage", "false_alarms"),
    }
    assert set(report["seats"][0]) == {"id", "node", "device", "uuid", "backends", "environment", "verdict"}
    assert set(report["controls"][0]) == {"name", "seat", "backend", "expected_kind", "caught", "detail"}
    assert set(report["assignments"][0]) == {
        *("id", "scenario", "target", "seat", "backend", "mode", "params", "verdict", "reason", "attempt", "elapsed_s"),
        *("checked_words", "findings", "latency"),
    }
    assert set(report["findings"][0]) == {"kind", "summary", "assignment", "first", "overwriter", "replay"}
    assert report["findings"][0]["replay"] == "failures/1.yaml"
    assert report["verdict_counts"] == dict.fromkeys(ORDER, 0) | {"FAIL": 1}
    assert report["coverage"]["checked_words"] == 10
    assert report["coverage"]["counters"] == {"publishes": 3}


def test_skip_of_the_worker_keeps_its_reason() -> None:
    body = passed(ONE, verdict="SKIP", reason="needs a GPU")
    told = judge(Tale([ONE]).tell(ONE, verdict="SKIP", reason=body["reason"]).ends())
    assert told.assignments[0]["reason"] == "needs a GPU"
