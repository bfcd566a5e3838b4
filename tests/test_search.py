"""The smallest depth that is enough: found where the line is, with evidence on both sides, and nowhere else."""

import json
from dataclasses import replace

import pytest
import torch
from cells import spec
from targets.faults import PLAIN, planted

from rig import registry, search
from rig.cause import Finding
from rig.config import load_config
from rig.controls import defaults
from rig.drive import Progress
from rig.errors import UsageError
from rig.judge import Cell, Result
from rig.worker import Worker

SAFE_DEPTH = registry.load("scenarios", "safe_depth")
SLOT = "        slot.cpu[: len(x)] = x\n"
SPILL = PLAIN.replace(SLOT, "        slot.cpu[: len(x)] = torch.roll(x, 1, 0)\n")


@pytest.fixture(scope="module")
def worker():
    return Worker(seat="s0", device="cpu", seed=7)


def asked(*, backend="sim", timeout_s=60.0, **params):
    about = {"id": f"safe_depth:t:{backend}:@s0", "scenario": "safe_depth", "target": "t", "backend": backend}
    quick = {"rows": 16, "num_steps": 12, "seeds": 2}
    more = {"mode": "verify", "params": defaults("safe_depth") | quick | params, "seat": "s0", "seed": 3}
    return about | more | {"timeout_s": timeout_s, "limits": {}, "baseline": None, "ratio_min": {}}


def run(worker, assignment, target):
    *found, body = worker.run(assignment, target)
    json.dumps([*found, body])
    return found, body


def depth_of(worker, target, **params):
    found, body = run(worker, asked(**params), target)
    assert (body["verdict"], found, body["findings"]) == ("PASS", [], []), body["reason"]
    told = body["search"]
    assert [one["depth"] for one in told["evidence"]] == list(range(1, told["depth"] + 1))
    assert [one["clean"] for one in told["evidence"]] == [False] * (told["depth"] - 1) + [True]
    assert all(one["summary"] and one["kind"] for one in told["evidence"][:-1])
    assert body["checked_words"] == told["evidence"][-1]["checked_words"] > 0
    assert told["evidence"][-1]["seeds"] == 2
    assert not any(key.startswith("wrong_") for key in body["coverage"])
    return told["depth"]


@pytest.mark.parametrize("read_at", ["publish", "step_end"])
@pytest.mark.parametrize(("in_flight", "publishes"), [(1, 1), (1, 3), (2, 1), (2, 2), (3, 2), (5, 1)])
def test_an_unfenced_pool_needs_in_flight_times_publishes(worker, in_flight, publishes, read_at):
    pace = {"in_flight": in_flight, "publishes_per_step": publishes, "read_at": read_at}
    assert depth_of(worker, spec("plain", PLAIN), **pace) == in_flight * publishes


@pytest.mark.parametrize(("in_flight", "publishes"), [(1, 1), (2, 1), (2, 2), (3, 2)])
def test_a_pool_that_reuses_one_step_early_needs_one_slot_more(worker, in_flight, publishes):
    target = spec("t", planted("one_step_early"))
    assert depth_of(worker, target, in_flight=in_flight, publishes_per_step=publishes) == in_flight * publishes + 1


@pytest.mark.parametrize(("guard", "depth"), [("wait", 1), ("grow", 1), ("trust", 6)])
@pytest.mark.parametrize("scope", ["step", "publish"])
def test_our_library_needs_no_depth_with_fences_and_the_contracts_without(worker, guard, depth, scope):
    assert depth_of(worker, spec("staging"), guard=guard, scope=scope, in_flight=3, publishes_per_step=2) == depth


def test_our_library_trusted_is_one_step_early_where_that_is_planted(worker):
    fault = spec("faulty:unfenced_reuse")
    assert depth_of(worker, fault, guard="wait", in_flight=3, publishes_per_step=2, streams=2) == 6


@pytest.mark.parametrize(("every", "depth"), [(0, 6), (2, 4), (3, 4), (4, 6)])
def test_steps_that_publish_nothing_need_no_slot(worker, every, depth):
    """Of three steps in flight at most two publish if every second or third one is idle."""
    pace = {"idle_every": every, "in_flight": 3, "publishes_per_step": 2}
    assert depth_of(worker, spec("plain", PLAIN), **pace) == depth


@pytest.mark.parametrize("source", [SPILL, planted("snapshot_alias"), planted("wrong_shape")])
def test_a_target_that_is_wrong_at_any_depth_fails_with_the_last_one_in_its_reason(worker, source):
    found, body = run(worker, asked(depth_max=5, in_flight=1), spec("t", source))
    assert (body["verdict"], found, body["search"]["depth"], body["checked_words"]) == ("FAIL", [], None, 0)
    assert body["reason"].startswith("no depth up to 5 is enough for in_flight 1 x 1 publish: depth 5 fails: ")
    assert [one["clean"] for one in body["search"]["evidence"]] == [False] * 5


def test_a_spill_is_named_as_one(worker):
    _, body = run(worker, asked(depth_max=2, in_flight=1), spec("t", SPILL))
    assert [one["kind"] for one in body["search"]["evidence"]] == ["spill", "spill"]


def test_a_line_beyond_the_last_depth_is_not_found(worker):
    for depth_max, verdict in ((3, "FAIL"), (4, "PASS")):
        pace = {"in_flight": 4, "depth_max": depth_max}
        assert run(worker, asked(**pace), spec("plain", PLAIN))[1]["verdict"] == verdict


@pytest.mark.parametrize("publishes", [1, 2, 7])
@pytest.mark.parametrize("every", [0, 2, 5])
def test_a_pool_comes_round_at_every_depth_however_few_steps_are_asked_for(publishes, every):
    """Else a deep pool would look like enough because none of its slots was used twice."""
    params = defaults("safe_depth") | {"publishes_per_step": publishes, "idle_every": every, "num_steps": 1}
    for depth in (1, 2, 33, 64):
        steps = SAFE_DEPTH.at_depth(params, depth, schedule="late")["num_steps"]
        idle = steps // every if every else 0
        assert (steps - idle) * publishes >= 3 * depth


def test_a_deep_line_is_found_with_few_steps(worker):
    assert depth_of(worker, spec("plain", PLAIN), in_flight=12, num_steps=1) == 12


def test_no_depth_is_left_out_since_a_deeper_pool_may_be_worse(worker):
    """One whose rotation works for powers of two alone: 4 is enough, 5 to 7 are not, and 8 is again."""
    masked = PLAIN.replace("(self._current + 1) % self.max_concurrency", "self._current + 1 & self.max_concurrency - 1")
    assert depth_of(worker, spec("t", masked), in_flight=4) == 4
    assert depth_of(worker, spec("t", masked), in_flight=5) == 8


@pytest.mark.parametrize(
    ("more", "target", "reason"),
    [
        ({"backend": "cpu"}, spec("plain", PLAIN), "backend cpu reads at once"),
        ({}, spec("t", PLAIN + '\nRIG_READS = "stream_ordered"\n'), "the target's publishes are stream-ordered"),
        ({}, spec("t", planted("constructor_pins")), "needs a GPU: "),
        ({}, spec("t", PLAIN.replace("import torch", "import no_such_package, torch", 1)), "import of t raised"),
        ({"publishes_per_step": 2, "scope": "publish", "read_at": "step_end"}, spec("staging"), "beyond contract: "),
    ],
    ids=["cpu", "stream_ordered", "pins", "import", "leases"],
)
def test_what_cannot_be_searched_is_no_answer(worker, more, target, reason):
    _, body = run(worker, asked(**more), target)
    assert body["verdict"] == ("FAIL" if reason.startswith("import") else "SKIP")
    assert body["reason"].startswith(reason)
    assert (body.get("search") or {}).get("depth") is None


def test_a_search_out_of_time_hangs_and_keeps_its_evidence(worker):
    _, body = run(worker, asked(num_steps=100_000, timeout_s=0.5), spec("plain", PLAIN))
    assert body["verdict"] == "HANG"
    assert body["reason"].startswith("timeout_s=0.5: the time was up in step ")
    assert [one["clean"] for one in body["search"]["evidence"]] == [False]


@pytest.mark.parametrize(
    ("found", "result", "says"),
    [
        (
            [Finding(kind="exception", summary="CUDA error: gone")],
            Result(device_lost=True),
            "depth 1 cost the device: CUD",
        ),
        ([], Result(), "no word was checked at depth 1"),
    ],
)
def test_a_lost_device_or_an_empty_pass_is_no_evidence_of_a_depth(monkeypatch, found, result, says):
    monkeypatch.setattr(search, "_pass", lambda *_: (found, result))
    cell = Cell(
        scenario="safe_depth",
        params=defaults("safe_depth"),
        backend="sim",
        device=torch.device("cpu"),
        seed=1,
        seat="s",
    )
    told = search.search(cell, {}, progress=Progress())
    assert (told.depth, told.device_lost) == (None, result.device_lost)
    assert (told.lost or told.skip).startswith(says)
    assert not any(one["clean"] for one in told.evidence)


def test_a_worker_that_lost_its_device_in_a_search_says_so(monkeypatch):
    gone = [Finding(kind="exception", summary="CUDA error: gone")]
    monkeypatch.setattr(search, "_pass", lambda *_: (gone, Result(device_lost=True)))
    own = Worker(seat="s0", device="cpu", seed=7)
    assert run(own, asked(), spec("staging"))[1]["verdict"] == "INCOMPLETE"
    monkeypatch.undo()
    assert run(own, asked() | {"id": "next"}, spec("staging"))[1]["reason"].startswith(
        "the device was lost in safe_depth:"
    )


def test_the_same_search_gives_the_same_record_and_every_seed_another_pass(worker):
    first, again = (run(worker, asked(streams=2), spec("t", PLAIN))[1] for _ in range(2))
    assert first | {"elapsed_s": 0} == again | {"elapsed_s": 0}
    cell = Cell(
        scenario="safe_depth", params=asked()["params"], backend="sim", device=torch.device("cpu"), seed=3, seat="s"
    )
    passes = [search._at(cell, 2, number) for number in range(3)]
    assert len({one.seed for one in passes}) == 3
    assert [one.params["schedule"] for one in passes] == ["late", "random", "random"]
    assert replace(passes[1], seed=0, params={}) == replace(passes[0], seed=0, params={})


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("mode: both", r"found 'both'; expected 'verify': safe_depth times nothing"),
        ("params: {idle_every: 1}", r"1 leaves no step that publishes"),
        ("compare: model", r"safe_depth is timed call by call|compare"),
        ("params: {depth: 2}", r"unknown parameter 'depth' of safe_depth"),
    ],
)
def test_a_config_that_asks_for_what_a_search_has_not_is_refused(tmp_path, line, says):
    path = tmp_path / "c.yaml"
    path.write_text(f"version: 1\nname: c\nruns:\n  - scenario: safe_depth\n    {line}\n")
    with pytest.raises(UsageError, match=says):
        load_config(path)


def test_the_scenario_says_what_it_can_falsify_and_what_it_takes():
    assert SAFE_DEPTH.SUMMARY
    assert SAFE_DEPTH.INVARIANTS
    for name, param in SAFE_DEPTH.PARAMS.items():
        assert param.problem(param.default) is None, name
        assert param.problem(object()), name
    known = set(registry.load("scenarios", "slot_reuse").PARAMS)
    assert set(SAFE_DEPTH.at_depth(defaults("safe_depth"), 2, schedule="late")) == known
