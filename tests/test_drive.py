"""The loop: in lock step, at the engine's pace, and nothing the target does gets past it."""

import itertools
import signal

import pytest
from cells import CPU, judged, performed, plain
from targets.faults import planted

from rig import ops
from rig.drive import DeadlineError, Performed, Progress, drive
from rig.interrupts import Interrupts
from rig.target import MissingNameError, Target, TargetRaisedError
from rig.words import Payload

POOL = ops.Make(name="p", what="pool", size=8, depth=2)


ONCE = (ops.Publish(name="p", num_rows=8), ops.Read(name="p"))


def steps(count, *, in_flight, per_step=ONCE):
    yield POOL
    for number in range(1, count + 1):
        yield ops.Step(number=number, in_flight=in_flight)
        yield from per_step


class Log:
    """An observer that only writes down what it is told."""

    def __init__(self):
        self.said = []

    def before(self, op):
        self.said.append(("before", op.verb))

    def after(self, done: Performed):
        self.said.append(("after", done.op.verb, done.mark))
        return iter(())

    def refused(self, op, error):
        self.said.append(("refused", op.verb, str(error)))

    def read(self, op):
        self.said.append(("read", op.name))
        return iter(())

    def settle(self, until):
        self.said.append(("settle", until))
        return iter(())


def logged(stream, module, **keywords):
    log, target = Log(), Target(module, device=CPU)
    payload, progress = Payload(seed=1, seat="s0"), keywords.pop("progress", Progress())
    list(drive(stream, target=target, observer=log, payload=payload, progress=progress, **keywords))
    return log.said


def test_readers_of_steps_up_to_n_minus_k_settle_before_step_n_is_published():
    said = logged(steps(5, in_flight=3), plain())
    publishes = [i for i, entry in enumerate(said) if entry[:2] == ("before", "publish")]
    for number, index in enumerate(publishes, start=1):
        assert ("settle", number - 3) in said[:index]
        assert ("settle", number - 2) not in said[:index]
    assert said[-1] == ("settle", None)


def test_each_write_of_a_tensor_in_a_step_has_its_own_mark():
    publish = ops.Publish(name="p", num_rows=8)
    said = logged(steps(2, in_flight=1, per_step=(publish, publish)), plain())
    assert [tuple(entry[2]) for entry in said if entry[:2] == ("after", "publish")] == [(1, 0), (1, 1), (2, 0), (2, 1)]


def test_progress_follows_the_steps():
    progress = Progress(assignment="a")
    logged(steps(7, in_flight=1), plain(), progress=progress)
    assert progress.step == 7


def test_a_deadline_ends_the_stream_at_the_next_step():
    clock = itertools.count(0, 10)
    progress = Progress(deadline_ns=500)
    with pytest.raises(DeadlineError, match="the time was up in step"):
        logged(steps(10_000, in_flight=1), plain(), progress=progress, clock_ns=lambda: next(clock))
    assert progress.step < 100


@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [
        ("publish_raises", TargetRaisedError, "publish `p`"),
        ("constructor_raises", TargetRaisedError, "constructor of pool `p`"),
    ],
)
def test_what_a_target_raises_is_the_targets(fault, error, text):
    with pytest.raises(error, match=text):
        logged(steps(3, in_flight=1), plain(planted(fault)))


def test_readers_settle_before_an_exception_ends_the_stream():
    module = plain()
    calls = itertools.count()
    real = module.UvaBufferPool.copy_to_uva
    log, target = Log(), Target(module, device=CPU)
    module.UvaBufferPool.copy_to_uva = lambda self, x: real(self, x) if next(calls) < 3 else 1 // 0
    with pytest.raises(TargetRaisedError):
        list(
            drive(
                steps(9, in_flight=2),
                target=target,
                observer=log,
                payload=Payload(seed=1, seat="s0"),
                progress=Progress(),
            )
        )
    assert log.said[-1] == ("settle", None)


def test_an_interrupt_is_nobodys_fault_unless_the_target_raises_it_itself():
    module, interrupts = plain(), Interrupts()

    def interrupted(self, x):
        with interrupts.raising():
            signal.raise_signal(signal.SIGINT)

    module.UvaBufferPool.copy_to_uva = interrupted
    interrupts.listen()
    try:
        with pytest.raises(KeyboardInterrupt):
            logged(steps(3, in_flight=1), module)
    finally:
        interrupts.restore()

    def interrupting(self, x):
        raise KeyboardInterrupt

    module.UvaBufferPool.copy_to_uva = interrupting
    with pytest.raises(TargetRaisedError):
        logged(steps(3, in_flight=1), module)


def test_a_name_is_missed_only_by_those_who_need_it():
    module = plain(planted("no_staged_tensor"))
    logged(steps(3, in_flight=1), module)
    with pytest.raises(MissingNameError, match="StagedWriteTensor"):
        logged([ops.Make(name="t", what="staged", size=3)], module)


def test_a_refusal_beyond_the_contract_is_noted_and_not_performed():
    stream = [
        ops.Make(name="t", what="staged", size=(2, 4)),
        ops.Step(number=1, in_flight=1),
        ops.Stage(name="t", row=0, start=0, length=3, beyond="overlap"),
        ops.Apply(name="t"),
        ops.Read(name="t"),
    ]
    module = plain()
    module.StagedWriteTensor.stage_write = lambda self, index, start, x: 1 // 0
    found, observer = performed(stream, module)
    assert not found
    assert observer.checked.counts["refusals"] == 1
    assert observer.checked.words == 8
    with pytest.raises(TargetRaisedError):
        performed([*stream[:2], ops.Stage(name="t", row=0, start=0, length=3)], module)


def test_a_write_out_of_bounds_that_is_accepted_shows_in_what_is_read():
    stream = [
        ops.Make(name="t", what="staged", size=(2, 4)),
        ops.Step(number=1, in_flight=1),
        ops.Stage(name="t", row=0, start=2, length=4, beyond="bounds"),
        ops.Apply(name="t"),
        ops.Read(name="t"),
    ]
    found, _ = performed(stream, plain())
    assert [finding.kind for finding in found] == ["spill"]
    assert "for row 0, offset 4: written +1 rows, -4 offsets off" in found[0].summary


def test_a_pass_stops_when_it_has_seen_enough_and_reports_each_kind_of_a_tensor_once():
    judgement = judged("slot_reuse", "one_step_early", "sim", num_steps=400)
    assert judgement.result.note.startswith("stopped in step")
    assert judgement.result.checked.wrong.total() == 32
    assert len(judgement.found) == len({(f.kind, f.tensor) for f in judgement.found})


def test_inputs_are_overwritten_after_the_call_that_took_them():
    source = planted("keeps_callers_memory")
    judgement = judged("slot_reuse", "keeps_callers_memory", "cpu", via=["tensor"], num_backed=0, reads_per_publish=1)
    assert not judgement.found, "read at once, the caller's memory still holds the words"
    stream = [POOL, ops.Step(number=1, in_flight=1)]
    stream += [ops.Publish(name="p", num_rows=8), ops.Publish(name="p", num_rows=8), ops.Read(name="p", back=1)]
    found, _ = performed(stream, plain(source), backend="cpu")
    assert [finding.kind for finding in found] == ["slot_reuse"]


@pytest.mark.parametrize("backend", ["sim", "cpu"])
@pytest.mark.parametrize("scenario", ["slot_reuse", "ragged_writes"])
def test_a_timed_pass_measures_the_targets_calls(scenario, backend):
    judgement = judged(scenario, "staging", backend, timed=True, num_steps=20)
    assert not judgement.found
    latency = judgement.result.measure.latency()
    assert set(latency) >= (
        {"publish", "publish_backed", "end_step"} if scenario == "slot_reuse" else {"stage", "apply"}
    )
    assert all(0 < entry["p50_ns"] <= entry["max_ns"] and entry["n"] for entry in latency.values())
    assert not {"make", "read", "step"} & set(latency)


@pytest.mark.parametrize("schedule", ["late", "random"])
def test_the_same_seed_gives_the_same_history(schedule):
    runs = [judged("slot_reuse", "one_step_early", "sim", schedule=schedule, seed=seed) for seed in (3, 3, 4)]
    texts = [[finding.summary for finding in run.found] for run in runs]
    assert texts[0] == texts[1]
    assert runs[0].result.checked == runs[1].result.checked
    assert texts[0] != texts[2]
