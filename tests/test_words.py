"""Payload words: computable anywhere, different everywhere, and traceable."""

import numpy as np
import pytest

from rig.ops import DTYPES
from rig.words import Form, Mark, Payload

MARK = Mark(3, 1)
FLOATS = {"float16": np.float16, "float32": np.float32, "float64": np.float64}


def block(form, mark=MARK, *, seed=7, seat="s0"):
    return Payload(seed=seed, seat=seat).block(form, mark, extent=form.extent(None))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(5, 1031), (3, 1), 77, (1,), (2, 3, 4), (2, 40000)])
def test_a_part_of_a_block_has_the_same_words_as_the_block(dtype, size):
    form, payload = Form("t", dtype, size), Payload(seed=7, seat="s0")
    whole = block(form)
    rows, cols = whole.shape
    at, extent = (rows // 2, cols // 3), (rows - rows // 2, cols - cols // 3)
    part = payload.block(form, Mark(3, 1), at=at, extent=extent)
    assert np.array_equal(part, whole[at[0] :, at[1] :])
    places = np.array([0, rows - 1]), np.array([cols - 1, 0])
    assert np.array_equal(payload.at(form, Mark(3, 1), *places), whole[places])


def test_a_block_is_written_into_the_memory_given():
    form, out = Form("t", "int64", (4, 9)), np.zeros((4, 9), np.uint64)
    assert Payload(seed=7, seat="s0").block(form, Mark(3, 1), extent=(4, 9), out=out) is out
    assert np.array_equal(out, block(form))


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 8},
        {"seat": "s1"},
        {"mark": Mark(4, 1)},
        {"mark": Mark(3, 2)},
        {"form": Form("u", "int32", (64, 64))},
    ],
    ids=["seed", "seat", "step", "write", "tensor"],
)
def test_words_differ_in_every_coordinate(other):
    form = Form("t", "int32", (64, 64))
    words = block(form)
    changed = block(**({"form": form} | other))
    assert (words == changed).mean() < 0.001
    assert len(np.unique(words)) > 0.999 * words.size


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_are_normal_and_finite(dtype):
    values = np.abs(block(Form("t", dtype, (64, 512))).view(FLOATS[dtype]))
    assert np.isfinite(values).all()
    assert values.min() >= np.finfo(FLOATS[dtype]).tiny


def test_bfloat16_exponents_are_those_of_normal_numbers():
    exponents = (block(Form("t", "bfloat16", (64, 512))) >> 7) & 0xFF
    assert exponents.min() > 0
    assert exponents.max() < 0xFF


def test_narrow_types_carry_the_low_bits_of_the_word():
    words = block(Form("t", "int32", (8, 100)))
    assert np.array_equal(block(Form("t", "int8", (8, 100))), words.astype(np.uint8))
    assert np.array_equal(block(Form("t", "bool", (8, 100))), words.astype(np.uint8) & 1)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
def test_a_word_tells_its_place(dtype):
    form, payload = Form("t", dtype, (37, 1031)), Payload(seed=7, seat="s0")
    words, rows = block(form), np.arange(37)
    for row, col in ((0, 0), (20, 1000), (36, 1030)):
        found = payload.origins(form, Mark(3, 1), int(words[row, col]), rows=rows, width=1031)
        assert (row, col) in found
        assert len(found) <= 2
    assert payload.origins(form, Mark(4, 1), int(words[0, 0]), rows=rows, width=1031) == []


@pytest.mark.parametrize(
    ("size", "shape", "extent"),
    [(6, (4,), (1, 4)), ((6,), (4,), (1, 4)), ((6, 3), (4, 3), (4, 3)), ((6, 3, 2), (4, 3, 2), (4, 6))],
)
def test_a_one_dimensional_tensor_is_one_row(size, shape, extent):
    form = Form("t", "int32", size)
    assert form.shape(4) == shape
    assert form.extent(4) == extent
