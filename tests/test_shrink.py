"""Shrinking: short lists, in time, and none that would make a correct module fail."""

import itertools
import random
from dataclasses import fields

import pytest
from cells import performed, plain
from hypothesis import given, settings
from hypothesis import strategies as st

from rig import ops, registry
from rig.bonds import Bonds, names, without_object
from rig.controls import defaults
from rig.reduce import reduced
from rig.shrink import shrink

DEPTH = 2
P, TABLE = ops.Make(name="p", what="pool", size=8, depth=DEPTH), ops.Make(name="t", what="staged", size=(4, 8))
PUBLISH, READ = ops.Publish(name="p", num_rows=8), ops.Read(name="p")
CELLS = [
    ("slot_reuse", {"depth": 4, "in_flight": 2, "publishes_per_step": 2, "read_at": "step_end", "streams": 2}),
    ("slot_reuse", {"depth": 3, "in_flight": 3, "buffers_every": 2, "copies_every": 2, "rows": 5, "cols": 3}),
    ("growth", {"depth": 2, "in_flight": 2, "remake_every": 2, "every": 1, "rows": 2, "rows_max": 9}),
    ("growth", {"depth": 3, "in_flight": 3, "remake_every": 1, "pattern": "all", "schedule": "random"}),
    ("ragged_writes", {"depth": 2, "in_flight": 2, "rows": 4, "cols": 9, "length": 12, "clear_every": 2}),
    ("ragged_writes", {"depth": 4, "in_flight": 2, "applies_per_step": 2, "rows": 3, "cols": 5, "length": 6}),
    ("fused_apply", {"depth": 2, "in_flight": 2, "rows": 3, "cols": 8, "num_tensors": 3}),
]


def step(number, *, in_flight=DEPTH):
    return ops.Step(number=number, in_flight=in_flight)


def steps(count, *body, in_flight=DEPTH):
    return [op for number in range(1, count + 1) for op in (step(number, in_flight=in_flight), *body)]


def stream(scenario, seed, **params):
    module = registry.load("scenarios", scenario)
    given_params = defaults(scenario) | {"num_steps": 7} | params
    assert module.skip_reason(given_params, fenced=False) is None, "only what any correct module must be right in"
    return list(module.ops(given_params, random.Random(seed)))


def shrunk(stream, shows, *, deadline_ns=1 << 62, clock_ns=lambda: 0):
    return shrink(stream, shows=shows, deadline_ns=deadline_ns, clock_ns=clock_ns)


def overlaps(stream):
    """Writes of one apply that share elements although none is said to."""
    staged, widths = {}, {op.name: op.size for op in stream if isinstance(op, ops.Make)}
    for op in stream:
        if isinstance(op, ops.Stage | ops.StageElem) and op.beyond == "":
            flat = isinstance(widths[op.name], int)
            row, start = (0, op.row + getattr(op, "start", 0)) if flat else (op.row, getattr(op, "start", 0))
            cells = {(op.name, row, start + i) for i in range(getattr(op, "length", 1))}
            if cells & staged.setdefault(op.name, set()):
                return True
            staged[op.name] |= cells
        elif isinstance(op, ops.Apply | ops.FusedApply | ops.Clear):
            for name in names(op):
                staged.pop(name, None)
    return False


@given(
    cell=st.sampled_from(CELLS),
    seed=st.integers(0, 99),
    coin=st.integers(0, 99),
    share=st.sampled_from([0.1, 0.3, 0.6]),
)
@settings(max_examples=25, deadline=None)
def test_a_correct_module_without_fences_is_clean_on_every_list_that_is_tried(cell, seed, coin, share):
    scenario, params = cell
    rng, module, tried = random.Random(coin), plain(), []

    def shows(candidate):
        tried.append(candidate)
        found, _ = performed(candidate, module, schedule=params.get("schedule", "late"))
        assert not found, (found[0].summary, candidate)
        assert not overlaps(candidate), candidate
        steps_ = [op.number for op in candidate if isinstance(op, ops.Step)]
        assert steps_ == list(range(1, len(steps_) + 1))
        return rng.random() < share and sum(isinstance(op, ops.Read) for op in candidate) > 3  # something is left

    clock = itertools.count()
    shrunk(stream(scenario, seed, **params), shows, deadline_ns=120, clock_ns=lambda: next(clock))
    assert tried


def test_two_steps_made_one_would_be_a_false_finding():
    listed = [P, *steps(3, PUBLISH, READ)]
    merged = [P, step(1), PUBLISH, READ, PUBLISH, READ, step(2), PUBLISH, READ]
    assert not performed(listed, plain())[0]
    assert performed(merged, plain())[0], "so the test above can fail"
    assert Bonds(listed).without({listed.index(step(2))}) == (P, *steps(2, PUBLISH, READ))


@pytest.mark.parametrize(
    ("listed", "gone", "left"),
    [
        ([P, step(1), PUBLISH, READ], [0], (step(1),)),
        ([P, step(1), PUBLISH, READ], [2], (P, step(1))),
        ([P, step(1), PUBLISH, READ], [3], (P, step(1), PUBLISH)),
        ([step(1), PUBLISH, READ], [], (step(1),)),
        ([P, step(1), READ], [], (P, step(1))),
        ([step(1), P, step(2), PUBLISH], [0], (P, step(1), PUBLISH)),
    ],
    ids=["no object", "no publish", "no read", "never made", "never published", "made in a step that goes"],
)
def test_what_needs_something_goes_with_it(listed, gone, left):
    assert Bonds(listed).without(gone) == left


def test_a_read_stays_with_its_own_publish():
    listed = [P, step(1), PUBLISH, PUBLISH, ops.Read(name="p", back=1), READ]
    assert Bonds(listed).without([3]) == (P, step(1), PUBLISH, READ)
    assert Bonds(listed).without([2]) == (P, step(1), PUBLISH, READ)
    assert Bonds(listed).without([2])[-1].back == 0


def test_a_staged_write_stays_with_its_own_apply():
    write, apply = ops.Stage(name="t", row=0, start=0, length=4), ops.Apply(name="t")
    listed = [TABLE, step(1), write, apply, write, apply, ops.Read(name="t")]
    assert Bonds(listed).without([3]) == (TABLE, step(1), write, apply, ops.Read(name="t"))
    assert overlaps([op for i, op in enumerate(listed) if i != 3])


def test_an_object_is_dropped_only_when_its_readers_are_done():
    listed = [P, step(1), PUBLISH, READ, step(2), step(3), ops.Drop(name="p")]
    assert Bonds(listed).without([4]) == (P, step(1), PUBLISH, READ, step(2))
    early = [P, step(1), PUBLISH, READ, step(2), ops.Drop(name="p"), step(3)]
    assert performed(early, plain())[0]


def test_an_unprotected_buffer_is_written_only_after_its_settle():
    buffer, expose = ops.Make(name="u", what="uva", size=8), ops.Expose(name="u", num_rows=8)
    listed = [buffer, step(1), expose, ops.Read(name="u"), ops.Settle(), expose, ops.Read(name="u")]
    assert Bonds(listed).without([4]) == (buffer, step(1), expose, ops.Read(name="u"))
    assert performed([op for op in listed if op != ops.Settle()], plain())[0]


def test_an_object_goes_out_of_what_works_on_several():
    other, writer = ops.Make(name="s", what="staged", size=8), ops.Make(name="w", what="fused", max_writes=8)
    both = ops.FusedApply(name="w", tensors=("t", "s"))
    listed = [TABLE, other, writer, step(1), both, ops.Read(name="s")]
    one = ops.FusedApply(name="w", tensors=("s",))
    assert without_object(listed, "t") == (other, writer, step(1), one, ops.Read(name="s"))


@pytest.mark.parametrize("scenario", [name for name, _ in CELLS])
def test_without_anything_left_out_a_stream_stays_as_it_is(scenario):
    listed = stream(scenario, 1, depth=2, in_flight=2)
    assert Bonds(listed).without(()) == tuple(listed)


def test_the_least_list_is_found_and_said_to_be_least():
    listed = [P, TABLE, *steps(40, PUBLISH, READ, ops.Stage(name="t", row=0, start=0, length=4), ops.Apply(name="t"))]
    result = shrunk(listed, lambda c: sum(isinstance(op, ops.Publish) for op in c) >= 3)
    assert [op.verb for op in result.ops] == ["make", *["step", "publish"] * 3]
    assert {op.in_flight for op in result.ops if isinstance(op, ops.Step)} == {1}
    assert result.ops[0].size == 1
    assert result.is_least
    assert result.num_tries < 100


def test_a_finding_that_needs_the_whole_stream_gets_it():
    listed = [P, *steps(33, PUBLISH, READ)]
    result = shrunk(listed, lambda c: sum(isinstance(op, ops.Read) for op in c) == 33)
    assert sum(isinstance(op, ops.Step) for op in result.ops) == 33


def test_a_finding_that_does_not_come_back_is_no_list():
    result = shrunk([P, *steps(33, PUBLISH, READ)], lambda c: False)
    assert (result.ops, result.is_least) == (None, True)
    assert 1 <= result.num_tries <= 6


def test_when_the_time_is_up_the_best_list_so_far_is_kept():
    clock = itertools.count()
    listed = [P, *steps(100, PUBLISH, READ)]
    result = shrunk(listed, lambda c: any(op == READ for op in c), deadline_ns=3, clock_ns=lambda: next(clock))
    assert result.num_tries == 3
    assert not result.is_least
    assert 0 < len(result.ops) < len(listed)
    assert shrunk(listed, lambda c: True, deadline_ns=0).num_tries == 0


@pytest.mark.parametrize(("scenario", "params"), CELLS)
def test_reduced_lists_are_smaller_in_numbers_alone(scenario, params):
    listed = tuple(stream(scenario, 2, **params))
    candidates = list(reduced(listed))
    assert candidates
    for candidate in candidates:
        assert [(op.verb, names(op)) for op in candidate] == [(op.verb, names(op)) for op in listed]
        assert total(candidate) < total(listed)


def test_depth_and_steps_in_flight_shrink_together_and_not_below_two_slots():
    listed = (ops.Make(name="p", what="pool", size=1, depth=3), step(1, in_flight=3))
    first = next(reduced(listed))
    assert (first[0].depth, first[1].in_flight) == (2, 2)
    assert [c[0].depth for c in reduced(first)] == [2]


def total(listed):
    values = [getattr(op, f.name) for op in listed for f in fields(op)]
    return sum(sum(v) if isinstance(v, tuple) and v and isinstance(v[0], int) else v for v in values if is_number(v))


def is_number(value):
    return (type(value) is int) or (isinstance(value, tuple) and all(type(item) is int for item in value))
