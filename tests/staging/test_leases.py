"""Every lease pattern of rule 4 on many schedules: a late reader sees exactly the words of its lease.

Every pattern is run again with a fault planted under it, which the same check must find.
"""

from __future__ import annotations

import inspect

import lease_patterns
import pytest
import torch
from conftest import IN_PLACE, LATE
from lease_patterns import DROPS, ELSEWHERE, LASTING, PATTERNS, REUSES, guard_trust
from play import Play

from staging.slots import Slot, SlotRing

NUM_SCHEDULES = 50


@pytest.fixture(autouse=True)
def _one_thread():
    """Copies are too small to share, and torch's threads spin where cores are few."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def trust(play, monkeypatch):
    """Nobody waits: the guard of everything is upstream's."""


def unfenced(play, monkeypatch):
    """Fences go to a stream on which nothing runs: each is done at once."""
    backend = play.manager.backend
    idle, honest = play.sim.stream("idle") if play.sim is not None else torch.cuda.Stream(), backend.fence
    monkeypatch.setattr(backend, "fence", lambda stream=None: honest(idle))


def ended_early(play, monkeypatch):
    """A lease ends with the step of its publish, though nothing new was published in it."""
    take, end_lease = SlotRing.take, Slot.end_lease

    def take_for_a_step(ring, num_rows):
        slot = take(ring, num_rows)
        end_lease(slot, play.manager.lease_end(fenced=True))
        return slot

    monkeypatch.setattr(SlotRing, "take", take_for_a_step)
    monkeypatch.setattr(Slot, "end_lease", lambda slot, end: None)


def untold(play, monkeypatch):
    """Nobody tells of the readers on the other stream."""
    play.told = False


def unkept(play, monkeypatch):
    """The caller trusts itself, and is wrong."""
    play.waits = False


SEEN = [name for name in LATE if name != "cuda_copy"]
"""Backends that show every fault: on cuda_copy the device's own order and torch's allocators hide most of them."""

PLANTED = [
    *[(pattern, trust, name) for pattern in REUSES for name in LATE],
    *[(pattern, unfenced, name) for pattern in (*REUSES, *ELSEWHERE) for name in IN_PLACE],
    *[(pattern, ended_early, name) for pattern in LASTING for name in IN_PLACE],
    *[(pattern, untold, name) for pattern in ELSEWHERE for name in SEEN],
    *[(pattern, unfenced, name) for pattern in DROPS for name in SEEN],
    *[(guard_trust, unkept, name) for name in LATE],
]


def _schedules(backend):
    return range(NUM_SCHEDULES if backend.startswith("sim") else 3)


@pytest.mark.parametrize("backend", LATE)
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.__name__)
def test_late_readers_see_the_words_of_their_lease(pattern, backend):
    for seed in _schedules(backend):
        play = Play(backend, seed)
        pattern(play)
        assert play.finish() == [], f"on schedule {seed}"


@pytest.mark.parametrize(("pattern", "fault", "backend"), PLANTED, ids=lambda x: getattr(x, "__name__", x))
def test_the_same_check_finds_the_planted_fault(pattern, fault, backend, monkeypatch):
    for seed in _schedules(backend):
        play = Play(backend, seed, guard="trust" if fault is trust else "wait")
        with monkeypatch.context() as patch:
            fault(play, patch)
            pattern(play)
            if play.finish():
                return
    pytest.fail("no schedule shows it")


def test_every_pattern_here_is_proved_and_refuted():
    takes_a_play = {
        f
        for f in vars(lease_patterns).values()
        if inspect.isfunction(f) and list(inspect.signature(f).parameters) == ["play"]
    }
    assert {pattern for pattern in takes_a_play if not pattern.__name__.startswith("_")} == set(PATTERNS)
    assert {pattern for pattern, _, _ in PLANTED} == set(PATTERNS)
