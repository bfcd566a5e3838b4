"""From wrong words to a finding: every kind from a planted cause, and its order."""

import numpy as np
import pytest

from rig import ops
from rig.cause import Sighting, explain
from rig.model import Model
from rig.trace import POISON
from rig.words import Mark, Payload

PAYLOAD = Payload(seed=1, seat="s0")


class History:
    """A pool `p` published in steps 1 to 9 (twice each) and a staged tensor `t`, written in steps 1 to 9."""

    def __init__(self, dtype="int32"):
        self.model = Model()
        self.model.perform(
            ops.Make(name="p", what="pool", size=(8, 40), dtype=dtype, depth=2), mark=Mark(0, 0), bits=None
        )
        self.model.perform(
            ops.Make(name="q", what="pool", size=(8, 40), dtype=dtype, depth=2), mark=Mark(0, 0), bits=None
        )
        self.model.perform(ops.Make(name="t", what="staged", size=(8, 40), dtype=dtype), mark=Mark(0, 0), bits=None)
        self.at = {}
        for step in range(1, 10):
            for write in range(2):
                self.model.perform(ops.Publish(name="p", num_rows=8), mark=Mark(step, write), bits=None)
                self.at[step, write] = self.model.expect(ops.Read(name="p"))
            self.model.perform(ops.Publish(name="q", num_rows=8), mark=Mark(step, 0), bits=None)
            for write, (start, length) in enumerate(((0, 30), (10, 30))):
                bits = self.words("t", Mark(step, write))[step % 8 : step % 8 + 1, start : start + length]
                self.model.perform(
                    ops.Stage(name="t", row=step % 8, start=start, length=length), mark=Mark(step, write), bits=bits
                )
            self.model.perform(ops.Apply(name="t"), mark=Mark(step, 0), bits=None)
            self.at["t", step] = self.model.expect(ops.Read(name="t"))

    def words(self, name, mark):
        return PAYLOAD.block(self.model.tracks[name].form, mark, extent=(8, 40))

    def explain(self, expected, got, *, step, in_flight=4):
        seen = Sighting(expected=expected, step=step, slot=1, in_flight=in_flight)
        slots = {("p", Mark(step, 0)): step % 2 for step in range(10)}
        want = expected.block(PAYLOAD)
        return explain(seen, got, want, payload=PAYLOAD, tracks=self.model.tracks, slots=slots)


def pool_case(history, got, *, write=0):
    return history.explain(history.at[5, write], got, step=5)


def staged_case(history, change):
    got = history.at["t", 5].block(PAYLOAD).copy()
    change(got)
    return history.explain(history.at["t", 5], got, step=5)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64", "int16", "bfloat16", "int8"])
@pytest.mark.parametrize(
    ("mark", "kind"),
    [(Mark(7, 0), "slot_reuse"), (Mark(5, 1), "slot_reuse"), (Mark(3, 1), "stale_alias"), (None, "stale_alias")],
)
def test_words_of_another_step_tell_reuse_from_staleness(dtype, mark, kind):
    history = History(dtype)
    got = np.zeros_like(history.words("p", Mark(1, 0))) if mark is None else history.words("p", mark)
    finding = pool_case(history, got)
    assert finding.kind == kind
    assert finding.overwriter == (None if mark is None else {"step": mark.step, "slot": finding.overwriter["slot"]})
    assert finding.tensor == "p"


def test_a_reuse_says_who_overwrote_what_and_how_early():
    history = History()
    finding = pool_case(history, history.words("p", Mark(7, 0)))
    assert finding.summary.startswith(
        "pool `p`: read of step 5 (slot 1) returned step 7's words: slot reused 2 steps early (depth 2, in flight 4)"
    )
    assert finding.overwriter == {"step": 7, "slot": 1}
    want, got = history.words("p", Mark(5, 0)), history.words("p", Mark(7, 0))
    assert finding.first == {
        "step": 5,
        "slot": 1,
        "tensor": "p",
        "row": 0,
        "offset": 0,
        "expected": f"{want[0, 0]:#010x}",
        "got": f"{got[0, 0]:#010x}",
    }


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "int16", "int8"])
def test_an_earlier_publish_of_the_same_step_is_a_wrong_winner(dtype):
    history = History(dtype)
    finding = pool_case(history, history.words("p", Mark(5, 0)), write=1)
    assert finding.kind == "wrong_winner"


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "int16", "int8"])
@pytest.mark.parametrize("shift", [(0, 1), (1, 0), (0, -2), (-1, 1)])
def test_words_of_another_place_of_the_same_step_are_a_spill(dtype, shift):
    history = History(dtype)
    finding = pool_case(history, np.roll(history.words("p", Mark(5, 0)), shift, axis=(0, 1)))
    assert finding.kind == "spill"


def test_freed_memory_comes_first_and_a_spill_before_a_reuse():
    history = History()
    got = history.words("p", Mark(7, 0)).copy()
    got[0, 5:9] = history.words("p", Mark(5, 0))[0, 4:8]
    assert pool_case(history, got).kind == "spill"
    got[3, :2] = POISON
    finding = pool_case(history, got)
    assert finding.kind == "use_after_free"
    assert (finding.first["row"], finding.first["offset"], finding.first["got"]) == (3, 0, f"{POISON:#x}")


def test_one_agreeing_word_is_no_cause():
    history = History()
    got = history.words("p", Mark(5, 0)).copy()
    got[2, 3] = history.words("p", Mark(7, 0))[2, 3]
    assert pool_case(history, got).kind == "corruption"
    got[2, 4] = history.words("p", Mark(7, 0))[2, 4]
    assert pool_case(history, got).kind == "slot_reuse"


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "int16", "int8", "bool"])
def test_foreign_words_are_corruption(dtype):
    history = History(dtype)
    rng = np.random.default_rng(0)
    want = history.words("p", Mark(5, 0))
    got = rng.integers(0, 2 if dtype == "bool" else 1 << 8 * want.itemsize, want.shape, dtype=want.dtype)
    finding = pool_case(history, got)
    assert finding.kind == "corruption"
    assert finding.overwriter is None


def test_words_of_another_tensor_are_named():
    history = History()
    finding = pool_case(history, history.words("q", Mark(6, 0)))
    assert finding.kind == "slot_reuse"
    assert "of `q`" in finding.summary


def test_a_write_that_is_missing_is_lost_whether_zeros_or_older_words_are_there():
    history = History()

    def zeros(got):
        got[5, :20] = 0

    assert staged_case(history, zeros).kind == "lost_write"
    later = history.at["t", 9].block(PAYLOAD).copy()
    later[1] = history.at["t", 8].block(PAYLOAD)[1]  # row 1 was written in steps 1 and 9
    finding = history.explain(history.at["t", 9], later, step=9)
    assert finding.kind == "lost_write"
    assert finding.overwriter == {"step": 1, "slot": None}


def test_the_first_of_overlapping_writes_is_a_wrong_winner():
    history = History()

    def first_wins(got):
        got[5, 10:30] = history.words("t", Mark(5, 0))[5, 10:30]

    finding = staged_case(history, first_wins)
    assert finding.kind == "wrong_winner"
    assert "write 0 of step 5, but write 1" in finding.summary


def test_a_write_that_lands_elsewhere_is_a_spill_also_where_nothing_was_written():
    history = History()

    def spilled(got):
        got[7, 0:5] = history.words("t", Mark(5, 1))[5, 35:40]

    finding = staged_case(history, spilled)
    assert finding.kind == "spill"
    assert "+2 rows" in finding.summary


def test_a_later_steps_write_is_a_reuse():
    history = History()

    def early(got):
        got[6] = history.at["t", 6].block(PAYLOAD)[6]

    finding = staged_case(history, early)
    assert finding.kind == "slot_reuse"
    assert finding.overwriter["step"] == 6
