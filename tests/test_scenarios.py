"""One contract for every scenario, and every target against every scenario; a new file is covered unedited."""

import json
import random

import pytest
from cells import judged, performed, plain
from targets.faults import FAULTS, PLAIN

from rig import ops, registry
from rig.controls import defaults

SCENARIOS = [name for name in registry.names("scenarios") if hasattr(registry.load("scenarios", name), "ops")]
SCENARIOS.remove("incident")  # which has one stream of its own for each incident: see test_incidents.py
TIMED = [name for name in registry.names("scenarios") if hasattr(registry.load("scenarios", name), "CASES")]
TARGETS = [name for name in registry.names("targets") if name in ("staging", "model")]
SHORT = {"num_steps": 12}


def stream(scenario, seed=3, **params):
    module = registry.load("scenarios", scenario)
    return list(module.ops(defaults(scenario) | params, random.Random(seed)))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario_says_what_it_can_falsify_and_what_it_takes(scenario):
    module = registry.load("scenarios", scenario)
    assert module.SUMMARY
    assert module.INVARIANTS
    for name, param in module.PARAMS.items():
        assert param.problem(param.default) is None, name
        assert param.problem(object()), name
    assert {"depth", "in_flight", "num_steps", "schedule", "stall_us", "beyond_contract"} <= set(module.PARAMS)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_its_stream_is_data_and_follows_from_the_seed(scenario):
    first, again, other = (stream(scenario, seed, **SHORT) for seed in (3, 3, 4))
    assert first == again
    assert first != other
    assert [ops.from_dict(json.loads(json.dumps(op.to_dict()))) for op in first] == first
    assert [op.number for op in first if isinstance(op, ops.Step)] == list(range(1, 13))


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("in_flight", [1, 2, 3, 4])
def test_cells_deeper_than_the_contract_are_for_fenced_targets(scenario, depth, in_flight):
    module = registry.load("scenarios", scenario)
    params = defaults(scenario) | {"depth": depth, "in_flight": in_flight}
    reason = module.skip_reason(params, fenced=False)
    assert (reason is None) == (in_flight <= depth)
    assert reason is None or reason.startswith("beyond contract")
    assert module.skip_reason(params, fenced=True) is None
    assert module.skip_reason(params | {"beyond_contract": True}, fenced=False) is None


@pytest.mark.parametrize("backend", ["sim", "cpu"])
@pytest.mark.parametrize("target", [*TARGETS, "plain"])
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize(
    "pace", [{"in_flight": 1}, {"in_flight": 2, "schedule": "random", "streams": 2}], ids=["one", "two"]
)
def test_a_correct_target_passes(scenario, target, backend, pace):
    judgement = judged(scenario, target, backend, **SHORT, **pace)
    assert not judgement.found, judgement.found[0].summary
    assert judgement.result.skip is None
    assert judgement.result.checked.words > 500


@pytest.mark.parametrize("scenario", TIMED)
def test_a_scenario_timed_as_a_whole_says_what_it_compares_and_what_it_takes(scenario):
    module = registry.load("scenarios", scenario)
    assert module.SUMMARY
    assert module.INVARIANTS
    assert module.CASES
    assert "rounds" in module.PARAMS
    for name, param in module.PARAMS.items():
        assert param.problem(param.default) is None, name
        assert param.problem(object()), name


DEEP = {"depth": 2, "in_flight": 5, "num_steps": 30}


@pytest.mark.parametrize(
    ("scenario", "params"),
    [
        ("slot_reuse", {"streams": 2, "schedule": "random"}),
        (
            "slot_reuse",
            {"publishes_per_step": 3, "read_at": "step_end", "dtypes": list(ops.DTYPES), "num_pools": 10, "cols": 5},
        ),
        ("slot_reuse", {"scope": "publish", "publishes_per_step": 3}),
        ("slot_reuse", {"guard": "grow", "buffers_every": 3}),
        ("growth", {"pattern": "repeated", "drop": "queued", "remake_every": 7, "cols": 3}),
        ("growth", {"pattern": "shrink", "scope": "publish", "streams": 2}),
        ("ragged_writes", {"overlap": True, "refusals": "far", "via": ["list", "ndarray", "tensor"], "num_steps": 8}),
        ("ragged_writes", {"dtypes": ["int8", "bfloat16", "float64"], "applies_per_step": 3, "num_steps": 5}),
        ("fused_apply", {"dtypes": ["int32", "float32", "int64", "bool"], "overlap": True, "streams": 2}),
    ],
)
@pytest.mark.parametrize("backend", ["sim", "cpu"])
def test_our_library_is_right_beyond_upstreams_contract(scenario, params, backend):
    judgement = judged(scenario, "staging", backend, **(DEEP | params))
    assert not judgement.found, judgement.found[0].summary
    assert judgement.result.checked.words > 1000


EXPECTED = {
    "one_step_early": ("slot_reuse", "sim", "slot_reuse"),
    "growth_frees_all": ("growth", "sim", "use_after_free"),
    "snapshot_alias": ("slot_reuse", "cpu", "stale_alias"),
    "row_shifted": ("ragged_writes", "cpu", "spill"),
    "wrong_row": ("ragged_writes", "cpu", "spill"),
    "last_chunk_lost": ("ragged_writes", "cpu", "lost_write"),
    "write_dropped": ("ragged_writes", "cpu", "lost_write"),
    "clear_ignored": ("ragged_writes", "cpu", "corruption"),
    "first_writer_wins": ("ragged_writes", "cpu", "wrong_winner"),
    "gpu_float_bits": ("ragged_writes", "cpu", "corruption"),
    "keeps_callers_memory": ("slot_reuse", "sim", "slot_reuse"),
    "wrong_dtype": ("slot_reuse", "cpu", "dtype"),
    "wrong_shape": ("slot_reuse", "cpu", "dtype"),
    "not_a_tensor": ("slot_reuse", "cpu", "dtype"),
    "publish_raises": ("slot_reuse", "cpu", "exception"),
    "constructor_raises": ("slot_reuse", "cpu", "exception"),
    "no_staged_tensor": ("ragged_writes", "cpu", "exception"),
    "input_zeroed": ("slot_reuse", "cpu", "corruption"),
    "copy_is_slot": ("slot_reuse", "cpu", "slot_reuse"),
    "copy_is_reused": ("slot_reuse", "cpu", "slot_reuse"),
    "staged_moves": ("ragged_writes", "cpu", "stale_alias"),
    "keeps_callers_list": ("ragged_writes", "cpu", "lost_write"),
    "no_apply": ("fused_apply", "cpu", "exception"),
    "keeps_every_slot": ("leaks", "cpu", "leak"),
    "keeps_a_note_of_every_write": ("leaks", "cpu", "leak"),
    "torn_by_an_iterable": ("failing_calls", "cpu", "corruption"),
    "cleared_by_a_failure": ("failing_calls", "cpu", "lost_write"),
    "rotates_by_thread": ("threads", "sim", "slot_reuse"),
    "short_offset": ("far_rows", "cpu", "spill"),
    "first_row_decides": ("backed_tensors", "cpu", "stale_alias"),
    "minus_zero_lost": ("slot_reuse", "cpu", "corruption"),
    "nan_payload_lost": ("slot_reuse", "cpu", "corruption"),
    "zero_dropped": ("ragged_writes", "cpu", "corruption"),
    "own_apply_after_fused": ("fused_apply", "cpu", "lost_write"),
    "third_dimension_lost": ("growth", "cpu", "exception"),
}
PARAMS = {  # in which a fault shows, where the defaults do not show it
    "first_writer_wins": {"overlap": True},
    "keeps_every_slot": {"num_steps": 72},
    "keeps_a_note_of_every_write": {"num_steps": 72, "keep": True},
    "rotates_by_thread": {"depth": 3, "in_flight": 3},
    "minus_zero_lost": {"fill": "extremes", "dtypes": ["float32"]},
    "nan_payload_lost": {"fill": "nan", "dtypes": ["float32"]},
    "zero_dropped": {"fill": "extremes"},
    "third_dimension_lost": {"planes": 3, "cols": 2},
    "own_apply_after_fused": {"own_share": 0.5, "depth": 4},
}


@pytest.mark.parametrize("fault", EXPECTED)
def test_a_planted_fault_is_found_as_what_it_is(fault):
    scenario, backend, kind = EXPECTED[fault]
    params = PARAMS.get(fault, {})
    judgement = judged(scenario, fault, backend, **({"num_steps": 30} | params))
    assert "read words of a later" in judgement.found[0].summary or not fault.startswith("copy_")
    assert kind in judgement.kinds, [finding.summary for finding in judgement.found]


def test_no_planted_fault_is_forgotten():
    elsewhere = {"constructor_pins", "import_raises"}  # tests/test_adapter.py, tests/test_worker.py
    assert set(EXPECTED) | elsewhere == set(FAULTS)


@pytest.mark.parametrize("fault", PARAMS)
def test_what_shows_a_fault_leaves_a_correct_module_alone(fault):
    scenario, backend, _ = EXPECTED[fault]
    judgement = judged(scenario, "plain", backend, **({"num_steps": 30} | PARAMS[fault]))
    assert not judgement.found or fault == "first_writer_wins", judgement.found[0].summary


def test_an_old_alias_of_a_uva_buffer_is_live():
    source = PLAIN.replace("class NonUvaBuffer:", "_live = UvaBuffer.uva\n\n\nclass NonUvaBuffer:")
    source += "\nUvaBuffer.uva = lambda self, n=None: _live(self, n).clone()\n"
    stream = [ops.Make(name="u", what="uva", size=9)]
    for number in range(1, 4):
        stream += [ops.Step(number=number, in_flight=1), ops.Settle(), ops.Expose(name="u", num_rows=3 * number)]
        stream += [ops.Read(name="u")]
    assert not performed(stream, plain())[0]
    found, _ = performed(stream, plain(source))
    assert [finding.kind for finding in found] == ["stale_alias"]


def test_a_copy_and_a_pool_that_grew_have_no_slot_numbers():
    stream = [ops.Make(name="p", what="pool", size=8, depth=2)]
    for number in range(1, 9):
        stream += [ops.Step(number=number, in_flight=2), ops.CopyToGpu(name="p", num_rows=8), ops.Read(name="p")]
    _, observer = performed(stream, plain())
    assert not observer._handles.slots
    grown = [*stream[:1], ops.Publish(name="p", num_rows=8), ops.Publish(name="p", num_rows=9)]
    _, observer = performed([*grown, ops.Publish(name="p", num_rows=8)], plain())
    assert list(observer._handles.slots.values()) == [0]


@pytest.mark.parametrize("in_flight", [1, 2, 3])
def test_one_step_early_shows_only_when_as_many_steps_are_in_flight_as_there_are_slots(in_flight):
    judgement = judged("slot_reuse", "one_step_early", "sim", depth=3, in_flight=in_flight, num_steps=30)
    assert judgement.kinds == ({"slot_reuse"} if in_flight == 3 else set())


@pytest.mark.parametrize("schedule", ["late", "random"])
def test_a_race_names_the_step_read_and_the_step_that_overwrote_it(schedule):
    judgement = judged("slot_reuse", "one_step_early", "sim", depth=2, in_flight=2, num_steps=60, schedule=schedule)
    finding = judgement.found[0]
    read, overwritten = finding.first["step"], finding.overwriter["step"]
    assert overwritten == read + 1
    assert f"read of step {read}" in finding.summary
    assert f"step {overwritten}'s words: slot reused 1 step early (depth 2, in flight 2)" in finding.summary


def test_a_write_wider_than_its_row_is_a_spill_if_it_is_accepted_and_nothing_if_it_is_refused():
    accepted = judged("ragged_writes", "plain", "cpu", refusals="near", writes_per_apply=0, layouts=["2d"], num_steps=3)
    assert "spill" in accepted.kinds
    assert not accepted.result.checked.counts["refusals"]
    refused = judged("ragged_writes", "model", "cpu", refusals="far", beyond_contract=True, num_steps=3)
    assert not refused.found
    assert refused.result.checked.counts["refusals"] > 9
