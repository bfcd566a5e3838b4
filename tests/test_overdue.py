"""Calls that never return are ended where they are, and nothing is raised anywhere else."""

import random
import threading
import time
from contextlib import suppress

import pytest
from cells import CPU, plain, spec
from targets.faults import PLAIN
from test_worker import assignment, run

from rig import calls, ops, overdue
from rig.drive import Progress, drive
from rig.overdue import Overdue, OverdueError, TimeLimit, place
from rig.readers import AtOnce
from rig.target import Target
from rig.verify import Verify
from rig.words import Payload
from rig.worker import Worker

HANGS = PLAIN.replace(
    "        slot = self._slots[self._current]\n        slot.cpu",
    "        slot = self._slots[self._current]\n        while True:\n            pass\n        slot.cpu",
)
SLOW = PLAIN.replace("        slot.cpu", "        import time; time.sleep(0.3)\n        slot.cpu", 1)
POOL = [ops.Make(name="p", what="pool", size=8, depth=2), ops.Step(number=1, in_flight=1)]
PUBLISH = ops.Publish(name="p", num_rows=8)


def forever():
    while True:
        pass


def work(num):
    """Bytecode at which something that is still to be raised would be."""
    return sum(index for index in range(num))


def test_a_call_that_never_returns_is_ended_and_named():
    with TimeLimit(0.02) as limit:
        with pytest.raises(Overdue) as caught:
            limit.call(forever)
        assert limit.fired
        assert place(caught.value).startswith("test_overdue.py:")
        assert place(caught.value).endswith(" in forever")


def test_a_call_that_returns_in_time_is_left_alone():
    with TimeLimit(60.0) as limit:
        assert limit.call(lambda: work(100)) == 4950
        assert not limit.fired
    with TimeLimit(None) as limit:
        assert limit.call(lambda: 7) == 7


def test_whatever_the_moment_nothing_is_raised_outside_the_call():
    rng, num_ended = random.Random(1), 0
    for _ in range(150):
        with TimeLimit(rng.uniform(0, 0.002)) as limit:
            for _ in range(40):  # many ends of a call, so that one of them meets the deadline
                try:
                    limit.call(lambda: work(rng.randrange(500)))
                except Overdue:
                    num_ended += 1
                work(200)
        work(200)
    with TimeLimit(0) as limit:
        with pytest.raises(Overdue):
            limit.call(forever)
        num_ended += 1
    assert num_ended


def test_what_was_raised_while_a_call_was_leaving_arrives_in_it_or_never():
    ready, leaving = threading.Event(), threading.Event()
    with TimeLimit(None) as limit:

        def meddle():
            with limit._lock:  # as the watcher does, at the worst moment: the call is over and wants to leave
                ready.set()
                leaving.wait()
                time.sleep(0.05)
                limit.fired = True
                overdue._raise_in(caller, Overdue)

        caller = threading.get_ident()
        thread = threading.Thread(target=meddle)
        thread.start()
        ready.wait()
        with suppress(Overdue):
            limit.call(leaving.set)
        work(10_000)
        thread.join()
        assert limit.call(lambda: work(1000)) == 499_500


def test_a_call_that_swallows_it_gets_it_again(monkeypatch):
    monkeypatch.setattr(overdue, "_AGAIN_S", 0.02)
    swallowed = []

    def stubborn():
        try:
            forever()
        except BaseException as error:
            swallowed.append(error)
        forever()

    with TimeLimit(0.02) as limit, pytest.raises(Overdue):
        limit.call(stubborn)
    assert len(swallowed) == 1


def driven(module, *stream):
    payload, target = Payload(seed=1, seat="s0"), Target(module, device=CPU)
    progress = Progress(deadline_ns=time.perf_counter_ns())
    observer = Verify(target=target, readers=AtOnce(), payload=payload)
    return list(drive(stream, target=target, observer=observer, payload=payload, progress=progress))


@pytest.mark.parametrize("thread", ["main", "other"])
def test_the_drive_ends_a_hang_on_whichever_thread_it_is(monkeypatch, thread):
    monkeypatch.setattr(calls, "_GRACE_S", 0.05)
    stream = [POOL[0], ops.OnThread(thread=thread), PUBLISH]
    with pytest.raises(OverdueError, match=r"^step 0: publish `p` did not return: plain:\d+ in copy_to_uva$"):
        driven(plain(HANGS), *stream)


def test_a_target_that_makes_another_error_of_it_hangs_all_the_same(monkeypatch):
    monkeypatch.setattr(calls, "_GRACE_S", 0.05)
    module = plain()

    def stuck(self, x):
        try:
            forever()
        except BaseException as error:
            raise ValueError("timed out") from error

    module.UvaBufferPool.copy_to_uva = stuck
    with pytest.raises(OverdueError, match="publish `p` did not return"):
        driven(module, POOL[0], PUBLISH)


def test_a_target_that_hangs_costs_its_assignment_and_not_the_seat(monkeypatch):
    monkeypatch.setattr(calls, "_GRACE_S", 0.1)
    worker = Worker(seat="s0", device="cpu", seed=7)
    found, body = run(worker, assignment(timeout_s=0.1, num_backed=0), spec("t", HANGS))
    assert (body["verdict"], body["findings"]) == ("HANG", ["hang"])
    assert found[0]["summary"].startswith("step 1: publish `pool0` did not return: t:")
    _, body = run(worker, assignment(), spec("staging"))
    assert body["verdict"] == "PASS"


def test_a_slow_call_that_returns_is_no_hang(monkeypatch):
    monkeypatch.setattr(calls, "_GRACE_S", 30.0)
    worker = Worker(seat="s0", device="cpu", seed=7)
    found, body = run(worker, assignment(timeout_s=0.1, num_backed=0), spec("t", SLOW))
    assert (body["verdict"], found) == ("HANG", [])
    assert "the time was up in step" in body["reason"]
