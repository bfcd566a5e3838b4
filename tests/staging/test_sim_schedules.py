"""What each schedule of the virtual accelerator runs when, and which faults it is for."""

import hashlib
import random

import pytest
from sim_programs import AS_EARLY_AS_CAN_BE, drawn, history, two_readers

from staging.backends.sim import Exhaustive, Late, Pct, Random, SimDevice

MADE = {
    "late": Late,
    "random": Random,
    "pct": lambda seed: Pct(seed, num_steps=100),
    "exhaustive": lambda seed: Exhaustive(),
}


@pytest.mark.parametrize("name", MADE)
def test_the_same_seed_gives_the_same_history(name):
    play = drawn(1)
    first, again, other = (history(play, MADE[name](seed)) for seed in (3, 3, 4))
    assert first == again
    assert MADE[name](3).name == name
    assert (first == other) == (name == "exhaustive")


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("seed", range(5))
def test_a_stream_runs_in_order_and_an_order_is_kept(name, seed):
    lines = history(drawn(seed), MADE[name](seed))
    told = [line.split() for line in lines]
    ran = [(stream, int(number)) for event, stream, number in (t for t in told if t[0] == "run")]
    for stream in ("main", "side", "more"):
        numbers = [number for name, number in ran if name == stream]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) == sum(t[0] in ("queue", "order") and t[1] == stream for t in told)
    for _, stream, number, other, count in (t for t in told if t[0] == "order"):
        assert int(count) == 0 or ran.index((other, int(count))) < ran.index((stream, int(number))) or stream == other
    assert any(t[0] == "order" for t in told)


@pytest.mark.parametrize(
    ("name", "digest"),
    [("late", "15c54a104facffc8"), ("random", "473a66516daa1f08")],
)
def test_the_draws_of_the_simple_schedules_are_what_they_always_were(name, digest):
    ran = []

    def play(sim):
        calls, fences = random.Random(7), []
        for number in range(200):
            stream = sim.stream(calls.choice(["main", "side", "more"]))
            fences.append(sim.enqueue(lambda number=number: ran.append(number), stream=stream))
            if calls.random() < 0.1:
                sim.order(calls.choice(fences), stream=stream)
            if calls.random() < 0.2:
                ran.append(("waited", calls.choice(fences).wait()))
        sim.synchronize()

    play(SimDevice(5, schedule=name))
    assert hashlib.sha256(repr(ran).encode()).hexdigest()[:16] == digest


def test_a_schedule_that_needs_more_than_a_seed_is_passed_as_an_object():
    for wrong in ("pct", "exhaustive", "early"):
        with pytest.raises(ValueError, match=f"'{wrong}'.*pass a Schedule"):
            SimDevice(schedule=wrong)
    for wrong in ({"num_steps": 0}, {"num_steps": 9, "depth": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            Pct(**wrong)


@pytest.mark.parametrize(
    ("depth", "seeds"), [(1, 40), (3, 40)], ids=["priorities alone", "priorities and their changes"]
)
def test_pct_runs_a_reader_as_early_and_as_late_as_can_be(depth, seeds):
    seen = {history(two_readers, Pct(seed, num_steps=8, depth=depth)) for seed in range(seeds)}
    assert AS_EARLY_AS_CAN_BE in seen
    assert any(lines.index("synchronize") < min(lines.index("run main 1"), lines.index("run side 1")) for lines in seen)


def test_pct_without_changes_keeps_to_its_priorities():
    """The one that is first stays first, however long it takes: six orders of three threads, no more."""
    seen = {history(drawn(2), Pct(seed, num_steps=100, depth=1)) for seed in range(200)}
    assert len(seen) <= 24  # of the host and three streams
    assert len({history(drawn(2), Pct(seed, num_steps=100, depth=3)) for seed in range(200)}) > 100


def reader_between(schedule, *, fenced, low=10, high=14, num=20):
    """Whether a reader ran behind the write to its slot (the `low`-th), but before what would have repaired it."""
    sim, ran = SimDevice(schedule=schedule), []
    writes, readers = sim.stream("writes"), sim.stream("readers")
    if not fenced:
        sim.enqueue(lambda: ran.append("read"), stream=readers)
    for number in range(num):
        last = sim.enqueue(lambda number=number: ran.append(number), stream=writes)
    if fenced:
        sim.order(last, stream=readers)
        sim.enqueue(lambda: ran.append("read"), stream=readers)
    sim.synchronize()
    return low <= ran.index("read") < high, sim.schedule


def test_pct_finds_a_fault_of_two_orders_within_its_bound():
    seeds, num_steps, threads = range(100), 42, 3
    hits = [seed for seed in seeds if reader_between(Pct(seed, num_steps=num_steps, depth=2), fenced=False)[0]]
    _, schedule = reader_between(Pct(0, num_steps=num_steps, depth=2), fenced=False)
    assert schedule.num_steps == num_steps
    assert len(hits) >= len(seeds) / (threads * num_steps)
    assert [reader_between(Pct(seed, num_steps=num_steps), fenced=False)[0] for seed in seeds].count(True) > 1
    for other in (Late, Random):  # which would need one stream to win ten tosses, then to lose soon
        assert not any(reader_between(other(seed), fenced=False)[0] for seed in seeds)


@pytest.mark.parametrize("make", [Late, Random, lambda seed: Pct(seed, num_steps=46)], ids=["late", "random", "pct"])
def test_its_clean_twin_has_the_order_and_no_seed_breaks_it(make):
    assert not any(reader_between(make(seed), fenced=True)[0] for seed in range(100))
