"""The numpy model: what each read must return."""

import numpy as np
import pytest

from rig import ops
from rig.model import Model
from rig.words import Form, Mark, Payload

PAYLOAD = Payload(seed=1, seat="s0")
FIRST = Mark(1, 0)


def perform(model, op, mark=FIRST):
    """Perform one operation with the payload that the drive would give it; returns that payload."""
    bits = None
    if isinstance(op, ops.Stage | ops.StageElem):
        form = model.tracks[op.name].form
        start, length = (op.start, op.length) if isinstance(op, ops.Stage) else (0, 1)
        at = (0, op.row + start) if form.flat else (op.row, start)
        bits = PAYLOAD.block(form, mark, at=at, extent=(1, length))
    elif isinstance(op, ops.WriteBacked):
        form = model.tracks[op.name].form
        at, extent = ((0, op.row), (1, op.num_rows)) if form.flat else ((op.row, 0), (op.num_rows, form.cols))
        bits = PAYLOAD.block(form, mark, at=at, extent=extent)
    model.perform(op, mark=mark, bits=bits)
    return bits


def read(model, name, **keywords):
    return model.expect(ops.Read(name=name, **keywords)).block(PAYLOAD)


def staged(size=(4, 10)):
    model = Model()
    perform(model, ops.Make(name="t", what="staged", size=size))
    return model


def test_a_publish_is_expected_in_closed_form():
    model = Model()
    perform(model, ops.Make(name="p", what="pool", size=(8, 3)))
    perform(model, ops.Publish(name="p", num_rows=5), Mark(2, 0))
    expected = model.expect(ops.Read(name="p"))
    assert expected.bits is None
    form = Form("p", "int32", (8, 3))
    assert np.array_equal(expected.block(PAYLOAD), PAYLOAD.block(form, Mark(2, 0), extent=(5, 3)))
    assert np.array_equal(read(model, "p", num_rows=2), expected.block(PAYLOAD)[:2])


def test_earlier_publishes_of_a_step_can_be_read_and_one_of_a_step_before():
    model = Model()
    perform(model, ops.Make(name="p", what="pool", size=4))
    for write in range(3):
        perform(model, ops.Publish(name="p", num_rows=4), Mark(1, write))
    assert [model.expect(ops.Read(name="p", back=back)).mark.write for back in range(3)] == [2, 1, 0]
    perform(model, ops.Step(number=2, in_flight=1))
    assert model.expect(ops.Read(name="p")).mark == Mark(1, 2)


def test_staged_writes_are_seen_from_the_apply_on():
    model = staged()
    bits = perform(model, ops.Stage(name="t", row=1, start=2, length=3))
    assert not read(model, "t").any()
    perform(model, ops.Apply(name="t"))
    seen = read(model, "t")
    assert np.array_equal(seen[1, 2:5], bits[0])
    assert np.count_nonzero(seen) == 3


def test_the_last_of_overlapping_writes_wins():
    model = staged()
    first = perform(model, ops.Stage(name="t", row=0, start=0, length=5), Mark(1, 0))
    last = perform(model, ops.Stage(name="t", row=0, start=3, length=4), Mark(1, 1))
    perform(model, ops.Apply(name="t"))
    assert np.array_equal(read(model, "t")[0, :7], np.concatenate([first[0, :3], last[0]]))


@pytest.mark.parametrize("beyond", [None, "clear", "bounds"])
def test_cleared_and_refused_writes_are_never_expected(beyond):
    model = staged()
    perform(model, ops.Stage(name="t", row=0, start=0, length=5, beyond="bounds" if beyond == "bounds" else ""))
    if beyond == "clear":
        perform(model, ops.Clear(name="t"))
    perform(model, ops.Apply(name="t"))
    assert read(model, "t").any() == (beyond is None)


def test_a_one_dimensional_write_lands_at_index_plus_start():
    model = staged(size=20)
    bits = perform(model, ops.Stage(name="t", row=4, start=3, length=2))
    element = perform(model, ops.StageElem(name="t", row=19), Mark(1, 1))
    perform(model, ops.FusedApply(name="w", tensors=("t",)))
    assert np.array_equal(read(model, "t")[0, 7:9], bits[0])
    assert read(model, "t")[0, 19] == element[0, 0]


def test_an_expectation_does_not_follow_later_writes():
    model = staged()
    perform(model, ops.Stage(name="t", row=0, start=0, length=5))
    perform(model, ops.Apply(name="t"))
    expected = model.expect(ops.Read(name="t"))
    before = expected.block(PAYLOAD).copy()
    perform(model, ops.Stage(name="t", row=0, start=0, length=5), Mark(2, 0))
    perform(model, ops.Apply(name="t"))
    assert np.array_equal(expected.block(PAYLOAD), before)


def test_a_backed_tensor_shows_what_it_held_when_it_was_published():
    model = Model()
    perform(model, ops.Make(name="b", what="backed", size=(6, 2)))
    assert not read(model, "b").any()
    first = perform(model, ops.WriteBacked(name="b", row=1, num_rows=2), Mark(1, 0))
    assert not read(model, "b").any()
    perform(model, ops.PublishBacked(name="b"))
    perform(model, ops.WriteBacked(name="b", row=2, num_rows=1), Mark(2, 0))
    assert np.array_equal(read(model, "b")[1:3], first)
    perform(model, ops.PublishBacked(name="b", num_rows=2))
    assert np.array_equal(read(model, "b"), np.concatenate([np.zeros((1, 2), np.uint32), first[:1]]))
