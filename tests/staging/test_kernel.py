"""The Triton kernel against its numpy reference: through Triton's interpreter here, compiled on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import staging
from staging.packing import Runs, pack, resolve, scatter

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
kernels = pytest.importorskip("staging.kernels")
load_ptr = kernels.load_ptr
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LENGTHS = [1, 2, 3, 7, 8, 1023, 1024, 1025, 4099]


def _check(tensors, sizes):
    """Run kernel and reference over the same packed bytes and compare every byte of the targets."""
    writes = pack(tensors)
    host = torch.zeros(writes.nbytes, dtype=torch.uint8)
    targets = [torch.zeros(size, dtype=torch.uint8, device=DEVICE) for size in sizes]
    writes.write(host.numpy(), [target.data_ptr() for target in targets])
    kernels.scatter(host.to(DEVICE), len(writes))
    due = [np.zeros(size, np.uint8) for size in sizes]
    scatter(host.numpy(), writes, due)
    for target, expected in zip(targets, due, strict=True):
        assert (target.cpu().numpy() == expected).all()
    return due


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_each_element_size_and_edge_length(dtype):
    rng, lengths = np.random.default_rng(5), np.array(LENGTHS)
    offsets = np.cumsum(lengths + 3) - lengths  # gaps of 3 elements, odd starts
    values = rng.integers(1, 127, lengths.sum()).astype(dtype)
    due = _check([(resolve(offsets, lengths), values)], [(int(offsets[-1]) + 5000) * values.itemsize])
    assert np.count_nonzero(due[0].view(dtype)) == lengths.sum()


def test_mixed_sizes_share_one_launch():
    tensors, sizes = [], []
    for dtype in (np.int64, np.int8, np.int32, np.int16):
        values = np.arange(1, 1501).astype(dtype) | 1
        tensors.append((Runs(np.array([5]), np.array([0]), np.array([1500])), values))
        sizes.append(1600 * values.itemsize)
    _check(tensors, sizes)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU with 3 GiB")
def test_offsets_beyond_2_to_the_31():
    far = 2**31 + 11
    values = np.arange(1, 2001, dtype=np.int8)
    writes = pack([(Runs(np.array([3, far]), np.array([0, 1000]), np.array([1000, 1000])), values)])
    target = torch.zeros(far + 2000, dtype=torch.uint8, device=DEVICE)
    host = torch.zeros(writes.nbytes, dtype=torch.uint8)
    writes.write(host.numpy(), [target.data_ptr()])
    kernels.scatter(host.to(DEVICE), len(writes))
    assert (target[far : far + 1000].cpu().numpy() == values[1000:].view(np.uint8)).all()
    assert int(target.count_nonzero()) == np.count_nonzero(values)


@triton.jit
def _first(table, out, element: tl.constexpr):
    tl.store(out, tl.load(load_ptr(table, element)))


def test_load_ptr_follows_a_table_of_pointers():
    values = torch.tensor([42, 43], dtype=torch.int32, device=DEVICE)
    table = torch.tensor([values.data_ptr()], dtype=torch.uint64, device=DEVICE)
    out = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    _first[(1,)](table, out, tl.int32)
    assert out.item() == 42
    assert staging._load_ptr is load_ptr
