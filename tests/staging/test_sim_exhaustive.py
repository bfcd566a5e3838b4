"""An exhaustive search of the virtual accelerator: every possible order once, each to be run again by its choices."""

import itertools

import pytest
from sim_programs import AS_EARLY_AS_CAN_BE, drawn, history, two_readers

from staging.backends.sim import Exhaustive


def every_history(play, choices="", bound=10_000):
    """The histories of an exhaustive search, and the choices that it did not come to."""
    found = []
    while choices is not None and len(found) < bound:
        schedule = Exhaustive(choices)
        found.append(history(play, schedule))
        assert not schedule.misfit()
        choices = schedule.following()
    return found, choices


def program(host):
    """A program from a list of calls: a stream's name queues work on it, (stream, other) orders it behind another."""

    def play(sim):
        for call in host:
            if isinstance(call, tuple):
                sim.order(sim.record(sim.stream(call[1])), stream=sim.stream(call[0]))
            else:
                sim.enqueue(lambda: None, stream=sim.stream(call))
        sim.synchronize()

    return play


def num_linear_extensions(host):
    """All orders of host calls and work that keep the host's order, each stream's, and each wait: by trying them all.

    Work that the final wait leaves is in some order behind it, as any other.
    """
    calls = [("call", number) for number in range(len(host))] + [("call", len(host))]  # the last one waits for all
    work, last = [], {}
    before = {(calls[number], calls[number + 1]) for number in range(len(host))}
    for number, call in enumerate(host):
        stream = call[0] if isinstance(call, tuple) else call
        piece = ("work", number)
        before.add((calls[number], piece))
        if stream in last:
            before.add((last[stream], piece))
        if isinstance(call, tuple) and call[1] in last:
            before.add((last[call[1]], piece))
        last[stream] = piece
        work.append(piece)
    events = [*calls, *work]
    needs = {event: {a for a, b in before if b == event} for event in events}

    def count(done):
        if len(done) == len(events):
            return 1
        return sum(count(done | {event}) for event in events if event not in done and needs[event] <= done)

    return count(frozenset())


@pytest.mark.parametrize(
    "host",
    [
        ["a"],
        ["a", "a"],
        ["a", "b"],
        ["a", "b", "a"],
        ["a", ("b", "a"), "b"],
        ["a", "a", "b", ("a", "b"), "a"],
        ["a", "b", "c", "a"],
    ],
    ids=str,
)
def test_an_exhaustive_search_runs_each_possible_order_once(host):
    histories, _ = every_history(program(host))
    assert len(histories) == len(set(histories)) == num_linear_extensions(host)


def test_an_exhaustive_search_goes_on_where_its_bound_was():
    play = program(["a", "b", "a"])
    everything, rest = every_history(play)
    assert rest is None
    found, choices = [], ""
    while choices is not None:
        more, choices = every_history(play, choices, bound=7)
        found += more
    assert found == everything


def test_its_first_run_is_as_late_as_can_be_and_its_last_as_early():
    histories, _ = every_history(two_readers)
    assert histories[0][:5] == ("queue main 1", "point", "queue side 1", "point", "synchronize")
    assert histories[-1] == AS_EARLY_AS_CAN_BE


@pytest.mark.parametrize("seed", range(3))
def test_its_choices_run_the_same_again(seed):
    play, choices = drawn(seed), ""
    for _ in itertools.repeat(None, 40):
        schedule = Exhaustive(choices)
        lines = history(play, schedule)
        again = Exhaustive(schedule.choices)
        assert history(play, again) == lines
        assert again.choices == schedule.choices
        assert set(schedule.choices) <= set(".abc")
        choices = schedule.following()


@pytest.mark.parametrize(
    ("choices", "misfit"),
    [
        ("", ""),
        ("a", ""),
        ("b", "choice 0 is 'b', where there is one of '.a'"),
        ("a.a.", "the run came to 2 of 4 choices"),
        ("..x", "choice 2 is 'x', where there is one of 'ab'"),
    ],
)
def test_choices_of_another_program_are_told(choices, misfit):
    schedule = Exhaustive(choices)
    history(program(["a", "b"]), schedule)
    assert schedule.misfit() == misfit


def test_what_is_captured_is_no_choice():
    def play(sim):
        sim.enqueue(lambda: None)
        with sim.capture() as graph:
            sim.enqueue(lambda: None)
        graph.replay()
        sim.synchronize()

    assert all(
        lines.count("queue main 1") == lines.count("queue main 2") == 1 and "queue main 3" not in lines
        for lines in every_history(play)[0]
    )
