"""Alternation and its arithmetic, on sides that take as long as they are told."""

import gc

import pytest

from rig.compare import Times, alternate, ratios
from rig.timed import Loop


class Told:
    """A side whose rounds are given; it notes when it ran."""

    def __init__(self, name, log, *rounds):
        self.name, self.log, self.rounds = name, log, list(rounds)

    def warm_up(self):
        self.log.append(f"warm {self.name}")

    def round(self):
        self.log.append(self.name)
        return self.rounds.pop(0) if self.rounds else {"case": [10]}


def test_sides_alternate_and_the_order_is_turned_each_round():
    log = []
    alternate([Told("a", log), Told("b", log)], rounds=3)
    assert log == ["a", "b", "b", "a", "a", "b"]


def test_a_side_alone_runs_all_of_its_rounds():
    log = []
    (times,) = alternate([Told("a", log)], rounds=3)
    assert log == ["a"] * 3
    assert times.latency()["case"]["n"] == 3


def test_times_stay_with_their_side_whatever_the_order():
    slow, quick = [{"case": [100]}] * 3, [{"case": [10]}] * 3
    first, second = alternate([Told("slow", [], *slow), Told("quick", [], *quick)], rounds=3)
    assert (first.medians_ns, second.medians_ns) == ({"case": [100] * 3}, {"case": [10] * 3})


def test_a_check_before_each_round_may_end_it():
    log, left = [], [None, None, TimeoutError("over")]

    def check():
        if (error := left.pop(0)) is not None:
            raise error

    with pytest.raises(TimeoutError):
        alternate([Told("a", log), Told("b", log)], rounds=9, check=check)
    assert log == ["a", "b", "b", "a"]
    assert gc.isenabled(), "switched on again"


def times(*medians):
    told = Times()
    for median in medians:
        told.add({"case": [median]})
    return told


def test_ratio_is_the_baselines_time_over_ours_as_median_over_rounds():
    told = ratios(times(10, 10, 10, 10, 20), times(20, 30, 40, 50, 20), against="peer")
    assert told["case"] == {
        **{"against": "peer", "ratio": 3.0, "p10": 1.4, "p90": 4.6, "rounds": 5},
        **{"target_ns": 10.0, "baseline_ns": 30.0},
    }


def test_ratio_of_a_round_is_that_of_its_medians():
    ours, theirs = Times(), Times()
    ours.add({"case": [1, 10, 1000]})
    theirs.add({"case": [50, 50, 50]})
    assert ratios(ours, theirs, against="x")["case"]["ratio"] == 5
    assert ours.latency()["case"]["max_ns"] == 1000


def test_what_only_one_side_did_or_what_took_no_time_has_no_ratio():
    other = Times()
    other.add({"other": [5]})
    assert ratios(times(10), other, against="x") == {}
    assert ratios(times(0), times(5), against="x") == {}


class Clock:
    """Every look at it takes a microsecond."""

    def __init__(self):
        self.now_ns = 0

    def __call__(self):
        self.now_ns += 1000
        return self.now_ns


def test_loop_times_the_call_alone_and_leaves_the_device_idle():
    log = []
    clock = Clock()

    def slow(name, us):
        def act():
            log.append(name)
            clock.now_ns += us * 1000

        return act

    loop = Loop(
        "case", slow("call", 9), before=slow("before", 50), sync=slow("sync", 70), round_ms=0.05, clock_ns=clock
    )
    loop.warm_up()
    assert loop.num_reps == 5, "as many as fill a round"
    log.clear()
    assert loop.round() == {"case": [10_000] * 5}
    assert log == ["before", "sync", "call"] * 5 + ["sync"]


@pytest.mark.parametrize(("round_ms", "num_reps"), [(0.001, 3), (1e6, 400)])
def test_a_round_has_neither_too_few_nor_too_many_repetitions(round_ms, num_reps):
    loop = Loop("case", lambda: None, sync=lambda: None, round_ms=round_ms, clock_ns=Clock())
    loop.warm_up()
    assert loop.num_reps == num_reps
