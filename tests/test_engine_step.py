"""The decode loop: its bookkeeping adds up, and both ways of calling a target leave the same bits on the device."""

import itertools

import numpy as np
import pytest
import torch
from cells import plain

import staging
from rig import registry
from rig.client import Client
from rig.controls import defaults
from rig.scenarios import _requests
from rig.scenarios._serving import BatchEngine, Engine, Loop
from rig.scenarios.engine_step import problem, step_plans
from rig.target import Target
from staging.backends.sim import SimBackend, SimDevice

SMALL = {
    **{"max_requests": 6, "max_model_len": 96, "start_requests": 4, "arrivals_per_step": 0.7, "prompt_median": 30},
    **{"output_median": 12, "num_groups": 3, "warm_up_steps": 5, "num_steps": 30, "rounds": 2},
}
TRACE = "0,20,3\n0.1,5,9\n0.15,90,40\n2,1,0\n"


def params(**more):
    return defaults("engine_step") | SMALL | more


def plans(num=80, seed=3, **more):
    return step_plans(params(**more), seed=seed, num=num)


def upstreams():
    return Client(Target(plain(), device=torch.device("cpu")), name="plain")


def ours(backend="cpu"):
    sim = SimDevice(4, schedule="late") if backend == "sim" else None
    manager = staging.DeviceMemoryManager("cpu", backend=SimBackend(sim) if sim else backend)
    return Client(Target(staging, device=torch.device("cpu"), manager=manager), name="staging", sim=sim)


def served(client, given, steps):
    """The loop over all steps; returns what the device holds at the end."""
    loop = Loop(client, given, steps)
    loop.warm_up()
    for _ in range(given["rounds"]):
        loop.round()
    engine = loop.engine
    return engine, {name: client.words(name) for name in (*engine.staged, *engine.published)}


@pytest.mark.parametrize("backend", ["cpu", "sim"])
@pytest.mark.parametrize("more", [{}, {"num_groups": 1}, {"max_concurrency": 4, "num_groups": 8}], ids=str)
def test_both_ways_of_calling_leave_the_same_bits(backend, more):
    given, steps = params(**more), plans(**more)
    theirs, expected = served(upstreams(), given, steps)
    mine, got = served(ours(backend), given, steps)
    assert (type(theirs), type(mine)) == (Engine, BatchEngine)
    assert expected.keys() == got.keys()
    for name, words in expected.items():
        assert words.tobytes() == got[name].tobytes(), name
    assert np.count_nonzero(expected["token_ids"]) > 100
    assert np.count_nonzero(expected["block_table0"]) > 10


def test_a_lost_write_would_show():
    given, steps = params(), plans()
    _, expected = served(upstreams(), given, steps)
    last = max(index for index, plan in enumerate(steps[:65]) if plan.prompts)
    steps[last].prompts[-1][-1] += 1
    _, got = served(ours(), given, steps)
    assert expected["token_ids"].tobytes() != got["token_ids"].tobytes()


def test_the_device_holds_what_the_plans_say():
    given, steps = params(rounds=1), plans(35)
    _, held = served(upstreams(), given, steps)
    tables, tokens = np.zeros_like(held["block_table1"]), np.zeros_like(held["token_ids"])
    for plan in steps:
        for row, prompt in zip(plan.new_rows, plan.prompts, strict=True):
            tokens[row, : len(prompt)] = prompt
        for group, row, start, blocks in plan.appends:
            if group == 1:
                tables[row, start : start + len(blocks)] = blocks
    assert (held["token_ids"] == tokens).all()
    assert (held["block_table1"] == tables).all()


def test_batches_hold_the_same_writes_as_single_calls():
    for plan in plans():
        columns = [] if plan.singles is None else [column.tolist() for column in plan.singles]
        singles = [(group, row, start, [block]) for group, row, start, block in zip(*columns, strict=True)]
        assert sorted(singles + plan.several) == sorted(plan.appends)
        assert all(len(append[3]) > 1 for append in plan.several)


def test_rows_are_given_out_once_and_blocks_cover_the_tokens():
    running, num_blocks, tokens, finished = set(), {}, {}, 0
    for plan in plans(200):
        active = set(plan.active.tolist())
        finished += len(running - active)
        assert active <= running, "only what was admitted generates"
        assert not active & set(plan.new_rows), "a row is free before it is given out again"
        for row in active:
            tokens[row] += 1
        for row, prompt in zip(plan.new_rows, plan.prompts, strict=True):
            tokens[row], num_blocks[row] = len(prompt), 0
        for group, row, start, blocks in plan.appends:
            assert start == num_blocks[row] + (0 if group == 0 else -len(blocks))
            num_blocks[row] += len(blocks) if group == 0 else 0
        running = active | set(plan.new_rows)
        assert len(running) <= SMALL["max_requests"]
        for row in running:
            assert num_blocks[row] == -(-tokens[row] // _requests.BLOCK_TOKENS)
            assert tokens[row] <= SMALL["max_model_len"]
    assert finished > 10


def test_the_stream_follows_from_the_seed():
    first, again, other = (repr(plans(30, seed)) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_a_trace_is_served_in_its_own_time_again_and_again(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    steps = plans(60, trace=str(path), trace_step_ms=100.0)
    lengths = [[len(prompt) for prompt in plan.prompts] for plan in steps]
    assert lengths[:2] == [[20], [5, 90]]
    once = [[20], [5, 90], [1]]
    assert [new for new in lengths if new][:7] == [*once, *once, [20]], "it begins anew a step after its end"
    assert all(len(plan.active) or plan.new_rows for plan in steps), "no step without requests"


def test_a_trace_of_one_moment_does_not_end():
    requests = _requests.in_steps([(5.0, 1, 1)], step_ms=1.0)
    assert [request.step for request in itertools.islice(requests, 3)] == [0, 1, 2]


def test_a_bad_trace_is_said_where_the_config_names_it(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("1,2,x\n")
    assert problem("trace", str(path)).startswith(f"{path}:1: column 3 (output tokens)")
    assert problem("trace", "") is None
    assert problem("rounds", 3) is None


def test_host_waits_for_the_step_that_is_as_far_back_as_it_may_be_ahead():
    log = []

    class Watched(Client):
        def mark(self):
            number = sum(entry.startswith("mark") for entry in log)
            log.append(f"mark {number}")
            return lambda: log.append(f"wait {number}")

    client = Watched(Target(plain(), device=torch.device("cpu")), name="plain")
    loop = Loop(client, params(max_concurrency=2), plans())
    loop.warm_up()
    assert log == ["mark 0", "mark 1", "wait 0", "mark 2", "wait 1", "mark 3", "wait 2", "mark 4"]


def test_it_yields_one_bout_with_both_figures():
    (bout,) = registry.load("scenarios", "engine_step").bouts(params(), seed=1, on_gpu=False, own=True)
    side = bout.build(upstreams())
    side.warm_up()
    told = side.round()
    assert set(told) == set(registry.load("scenarios", "engine_step").CASES)
    assert (len(told["host_step"]), len(told["steps"])) == (SMALL["num_steps"], 1)
