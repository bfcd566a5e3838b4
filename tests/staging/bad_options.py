"""Objects that cannot be built as asked: (name, call, error, fragments of its text)."""

from __future__ import annotations

import numpy as np
import torch

import staging

SERVED = "choose one of"
KINDS = [
    staging.UvaBuffer,
    staging.NonUvaBuffer,
    staging.UvaBufferPool,
    staging.UvaBackedTensor,
    staging.StagedWriteTensor,
]


def _manager(**options):
    return lambda b: staging.DeviceMemoryManager("cpu", **options)


BAD_OPTIONS = [
    ("backend", _manager(backend="gpu"), ValueError, "backend='gpu'", "auto, cpu"),
    ("backend None", _manager(backend=None), ValueError, "backend=None", "auto, cpu"),
    ("guard", _manager(guard="hope"), ValueError, "guard='hope'", "wait, raise, grow, trust"),
    ("growth name", _manager(growth="fast"), ValueError, "growth='fast'", "pow2"),
    ("growth 1", _manager(growth=1), ValueError, "growth=1", "a factor over 1"),
    ("growth nan", _manager(growth=float("nan")), ValueError, "growth=nan", "a factor over 1"),
    ("growth inf", _manager(growth=float("inf")), ValueError, "growth=inf", "a factor over 1"),
    ("growth True", _manager(growth=True), ValueError, "growth=True", "a factor over 1"),
    ("on_limit", _manager(on_limit="ignore"), ValueError, "on_limit='ignore'", "'pageable'"),
    ("depth 0", _manager(depth=0), ValueError, "depth=0", "at least 1"),
    ("depth -1", _manager(depth=-1), ValueError, "depth=-1", "at least 1"),
    ("depth 1.5", _manager(depth=1.5), TypeError, "depth=1.5", "give an integer"),
    ("depth text", _manager(depth="2"), TypeError, "depth='2'", "give an integer"),
    ("limit -1", _manager(limit_bytes=-1), ValueError, "limit_bytes=-1", ">= 0"),
    ("limit text", _manager(limit_bytes="1GB"), TypeError, "limit_bytes='1GB'", "give an integer"),
    ("timeout -1", _manager(wait_timeout_s=-1), ValueError, "wait_timeout_s=-1", ">= 0"),
    ("timeout text", _manager(wait_timeout_s="1"), ValueError, "wait_timeout_s='1'", "seconds"),
    ("timeout nan", _manager(wait_timeout_s=float("nan")), ValueError, "wait_timeout_s=nan", "seconds"),
    ("meta device", lambda b: staging.DeviceMemoryManager("meta"), staging.BackendUnavailableError, "meta", "cuda_uva"),
    ("pool depth 0", lambda b: staging.UvaBufferPool(4, torch.int32, 0, manager=b.manager), ValueError, "=0",
     "at least 1"),
    ("pool depth -2", lambda b: staging.UvaBufferPool(4, torch.int32, -2, manager=b.manager), ValueError, "=-2",
     "at least 1"),
    ("pool depth 1.5", lambda b: staging.UvaBufferPool(4, torch.int32, 1.5, manager=b.manager), TypeError, "=1.5",
     "integer"),
    ("tensor depth 0", lambda b: staging.StagedWriteTensor(4, torch.int32, None, 0, manager=b.manager), ValueError,
     "=0"),
    ("backed depth 0", lambda b: staging.UvaBackedTensor(4, torch.int32, 0, manager=b.manager), ValueError, "=0"),
    ("writer depth 0", lambda b: staging.FusedStagedWriter(None, 4, 0, manager=b.manager), ValueError, "=0"),
    ("max_writes -1", lambda b: staging.FusedStagedWriter(None, -1, manager=b.manager), ValueError, "max_writes=-1",
     ">= 0"),
    ("max_writes 1.5", lambda b: staging.FusedStagedWriter(None, 1.5, manager=b.manager), TypeError, "max_writes=1.5"),
    ("default depth 2.5", lambda b: staging.set_default_max_concurrency(2.5), TypeError, "n=2.5", "integer"),
    ("default manager None", lambda b: staging.set_default_manager(None), TypeError, "manager=None"),
    ("pool guard", lambda b: staging.UvaBufferPool(4, torch.int32, guard="x", manager=b.manager), ValueError,
     "guard='x'", SERVED),
    ("backed guard", lambda b: staging.UvaBackedTensor(4, torch.int32, guard="x", manager=b.manager), ValueError,
     "guard='x'"),
    ("tracking", lambda b: staging.UvaBackedTensor(4, torch.int32, tracking="x", manager=b.manager), ValueError, "'x'",
     "'caller'"),
    ("table of rank 3", lambda b: staging.StagedWriteTensor((2, 2, 2), torch.int32, manager=b.manager), ValueError,
     "rank 3", "limit is 2"),
    ("table of rank 0", lambda b: staging.StagedWriteTensor((), torch.int32, manager=b.manager), ValueError, "size=()",
     "count of rows"),
    ("no manager", lambda b: staging.UvaBuffer(4, torch.int32, manager=5), TypeError, "manager=5"),
    ("tensor on meta", lambda b: staging.StagedWriteTensor(4, torch.int32, "meta", manager=b.manager), ValueError,
     "meta", "serves"),
    ("writer on meta", lambda b: staging.FusedStagedWriter("meta", 4, manager=b.manager), ValueError, "meta", "serves"),
    ("moved to meta", lambda b: staging.async_tensor_h2d([1], "meta", manager=b.manager), ValueError, "meta", "serves"),
]  # fmt: skip

BAD_SIZES = [
    (f"{k.__name__} {name}", lambda b, k=k, size=size, dtype=dtype: k(size, dtype, manager=b.manager), *due)
    for k in KINDS
    for name, size, dtype, *due in [
        ("-1", -1, torch.int32, ValueError, "size=-1", ">= 0"),
        ("(2, -3)", (2, -3), torch.int32, ValueError, "(2, -3)", ">= 0"),
        ("1.5", 1.5, torch.int32, TypeError, "size=1.5", "integers"),
        ("None", None, torch.int32, TypeError, "size=None", "integers"),
        ("2**62", 2**62, torch.int32, OverflowError, str(2**64), str(2**63 - 1)),
        ("complex64", 4, torch.complex64, TypeError, "complex64", SERVED),
        ("numpy dtype", 4, np.int32, TypeError, "int32", SERVED),
    ]
]
