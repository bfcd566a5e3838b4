"""Programs for the virtual accelerator, and the history that it tells of one."""

import random

from staging.backends.sim import SimDevice


def history(play, schedule):
    """The lines that a device under a schedule tells of a program."""
    lines = []
    play(SimDevice(schedule=schedule, listener=lines.append))
    return tuple(lines)


def drawn(seed):
    """A program of 60 calls on three streams."""

    def play(sim):
        calls, fences = random.Random(seed), []
        for _ in range(60):
            stream, call = sim.stream(calls.choice(["main", "side", "more"])), calls.random()
            if call < 0.6 or not fences:
                fences.append(sim.enqueue(lambda: None, stream=stream))
            elif call < 0.7:
                sim.order(calls.choice(fences), stream=stream)
            elif call < 0.8:
                sim.advance()
            elif call < 0.9:
                fences.append(sim.record(stream))
            else:
                calls.choice(fences).wait()
        sim.synchronize()

    return play


def two_readers(sim):
    for stream in ("main", "side"):
        sim.enqueue(lambda: None, stream=sim.stream(stream))
        sim.advance()
    sim.synchronize()


AS_EARLY_AS_CAN_BE = ("queue main 1", "run main 1", "point", "queue side 1", "run side 1", "point", "synchronize")
