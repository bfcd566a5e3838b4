"""The Triton kernel against its numpy reference: through Triton's interpreter here, compiled on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import staging
from staging.dtypes import CARRIERS
from staging.packing import pack, scatter
from staging.write_log import WriteLog

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
kernels = pytest.importorskip("staging.kernels")
load_ptr = kernels.load_ptr
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LENGTHS = [1, 2, 3, 7, 8, 1023, 1024, 1025, 4099]


def _log(dtype, size, writes, *, stash=False):
    """A log of one flat tensor and its size in bytes; `writes` are (offset, values)."""
    log = WriteLog((size,), dtype, stash=(lambda values: values.copy()) if stash else None)
    for offset, values in writes:
        log.stage(offset, 0, values)
    return log, size * log.itemsize


def _check(*logs, num_programs=3):
    """Run kernel and reference over the same packed bytes and compare every byte of the targets."""
    writes = pack([log for log, _ in logs])
    host = torch.zeros(writes.nbytes, dtype=torch.uint8)
    packed = host.to(DEVICE)
    stashes = [torch.from_numpy(stash.view(np.uint8).copy()).to(DEVICE) for stash in writes.stashes]
    targets = [torch.zeros(size, dtype=torch.uint8, device=DEVICE) for _, size in logs]
    pointers = ([t.data_ptr() for t in targets], packed.data_ptr(), [stash.data_ptr() for stash in stashes])
    writes.write(host.numpy(), targets=pointers[0], packed=pointers[1], stashes=pointers[2])
    packed.copy_(host)
    kernels.scatter(packed[writes.header_at :].view(torch.int64), len(writes), num_programs)
    due = [np.zeros(size, np.uint8) for _, size in logs]
    scatter([host.numpy(), *(stash.view(np.uint8) for stash in writes.stashes)], writes, due)
    for target, expected in zip(targets, due, strict=True):
        assert (target.cpu().numpy() == expected).all()
    return due


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("stash", [False, True])
def test_each_element_size_and_edge_length(dtype, stash):
    rng, offset, writes = np.random.default_rng(5), 1, []
    for length in LENGTHS:
        writes.append((offset, rng.integers(1, 127, length).astype(CARRIERS[dtype])))
        offset += length + 3  # gaps of 3 elements, odd starts
    (due,) = _check(_log(dtype, offset + 100, writes, stash=stash))
    assert np.count_nonzero(due.view(CARRIERS[dtype])) == sum(LENGTHS)


@pytest.mark.parametrize("stash", [False, True])
def test_mixed_sizes_and_overlaps_share_one_launch(stash):
    logs = []
    for dtype in (torch.int64, torch.int8, torch.int32, torch.int16):
        values = np.arange(1, 5001).astype(CARRIERS[dtype]) | 1
        logs.append(_log(dtype, 6000, [(5, values), (2000, [9] * 700), (1500, [7] * 600)], stash=stash))
    for index, due in enumerate(_check(*logs)):
        bits = due.view(CARRIERS[logs[index][0].dtype])
        assert (bits[1500:2100] == 7).all()
        assert (bits[2100:2700] == 9).all()


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU with 3 GiB")
def test_offsets_beyond_2_to_the_31():
    far, values = 2**31 + 11, np.arange(1, 1001, dtype=np.int8)
    writes = pack([_log(torch.int8, far + 2000, [(3, values), (far, values)])[0]])
    target = torch.zeros(far + 2000, dtype=torch.uint8, device=DEVICE)
    host = torch.zeros(writes.nbytes, dtype=torch.uint8)
    packed = host.to(DEVICE)
    writes.write(host.numpy(), targets=[target.data_ptr()], packed=packed.data_ptr(), stashes=[])
    packed.copy_(host)
    kernels.scatter(packed[writes.header_at :].view(torch.int64), len(writes))
    assert (target[far : far + 1000].cpu().numpy() == values.view(np.uint8)).all()
    assert int(target.count_nonzero()) == 2 * np.count_nonzero(values)


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
