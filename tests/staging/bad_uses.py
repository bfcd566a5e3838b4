"""Objects used with what does not belong there: (name, call on a bench, error, fragments of its text)."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

import staging
from staging import MemoryLimitError

OUT = {
    "list": ([0, 0], TypeError, "out is a list"),
    "array": (np.zeros(2, np.int32), TypeError, "out is a ndarray"),
    "shape": (torch.zeros(3, dtype=torch.int32), ValueError, "(3,)", "(2,)"),
    "dtype": (torch.zeros(2, dtype=torch.int64), ValueError, "int64", "int32"),
    "device": (torch.zeros(2, dtype=torch.int32, device="meta"), ValueError, "meta"),
}


def _moved(b, out):
    return staging.async_tensor_h2d([9, 9], b.device, torch.int32, out, manager=b.manager)


def _expanded(b):
    return torch.zeros(1, dtype=torch.int32, device=b.device).expand(2)


def _into_grad(b, copy):
    copy([9.0], out=torch.zeros(1, device=b.device, requires_grad=True))


def _table(count, dtype, device="meta"):
    return torch.zeros(count, dtype=dtype, device=device)


BAD_USES = [
    *((f"copy_to_gpu out {name}", lambda b, out=out: b.pool.copy_to_gpu([9, 9], out), *due)
      for name, (out, *due) in OUT.items()),
    *((f"transfer out {name}", lambda b, out=out: _moved(b, out), *due) for name, (out, *due) in OUT.items()),
    ("copy_to_gpu out expanded", lambda b: b.pool.copy_to_gpu([9, 9], _expanded(b)), ValueError, "(0,)", "expanded"),
    ("transfer out expanded", lambda b: _moved(b, _expanded(b)), ValueError, "(0,)", "expanded"),
    ("copy_to_gpu out with grad", lambda b: _into_grad(b, b.pool_of(torch.float32)[0].copy_to_gpu), ValueError, "grad",
     "out.detach()"),
    ("transfer out with grad", lambda b: _into_grad(b, partial(staging.async_tensor_h2d, manager=b.manager)),
     ValueError, "grad", "out.detach()"),
    ("uva -1", lambda b: b.uva.uva(-1), ValueError, "n=-1", "4 rows"),
    ("uva 5", lambda b: b.uva.uva(5), ValueError, "n=5", "4 rows"),
    ("uva 1.5", lambda b: b.uva.uva(1.5), TypeError, "n=1.5", "integer"),
    ("non-uva -1", lambda b: b.non_uva.uva(-1), ValueError, "n=-1", "4 rows"),
    ("non-uva 5", lambda b: b.non_uva.uva(5), ValueError, "n=5", "4 rows"),
    ("backed n -1", lambda b: b.backed.copy_to_uva(-1), ValueError, "n=-1", "4 rows"),
    ("backed n 5", lambda b: b.backed.copy_to_uva(5), ValueError, "n=5", "4 rows"),
    ("backed n 2.0", lambda b: b.marked.copy_to_uva(2.0), TypeError, "n=2.0", "integer"),
    ("mark 4", lambda b: b.marked.mark_dirty(4), IndexError, "rows 4", "0 to 3"),
    ("mark -1", lambda b: b.marked.mark_dirty([0, -1]), IndexError, "[0, -1]", "0 to 3"),
    ("mark 1.5", lambda b: b.marked.mark_dirty(1.5), IndexError, "rows 1.5", "0 to 3"),
    ("mark True", lambda b: b.marked.mark_dirty(True), IndexError, "rows True", "0 to 3"),
    ("mark text", lambda b: b.marked.mark_dirty("a"), IndexError, "rows 'a'", "0 to 3"),
    ("mark a long mask", lambda b: b.marked.mark_dirty([True] * 5), IndexError, "True", "0 to 3", "a mask"),
    ("mark a table", lambda b: b.marked.mark_dirty(np.zeros((4, 2), bool)), IndexError, "False", "0 to 3", "a mask"),
    ("mark where compared", lambda b: b.backed.mark_dirty(0), ValueError, "tracking='caller'", "finds changes itself"),
    ("fused twice", lambda b: b.writer.apply([b.ints, b.ints]), ValueError, "listed twice", "list each one once"),
    ("fused stage twice", lambda b: b.writer.stage([b.ints, b.ints], [0], 0, 0, [9]), ValueError, "listed twice"),
    ("fused of another", lambda b: b.writer.apply([b.ints, _stranger(b)]), ValueError, "tensors[1]", "another manager"),
    ("fused stage of another", lambda b: b.writer.stage([_stranger(b)], [0], 0, 0, [9]), ValueError, "another manager"),
    ("fused of a plain one", lambda b: b.writer.apply([torch.zeros(4)]), TypeError, "tensors[0]",
     "not a StagedWriteTensor"),
    ("fused of a backed one", lambda b: b.writer.apply([b.ints, b.backed]), TypeError, "tensors[1]", "UvaBackedTensor"),
    ("ptrs of 2", lambda b: b.writer.apply([b.ints], _table(2, torch.uint64, b.device)), ValueError,
     "output_ptrs holds 2", "1 of"),
    ("ptrs of int64", lambda b: b.writer.apply([b.ints], _table(1, torch.int64, b.device)), ValueError, "int64",
     "torch.uint64"),
    ("ptrs on meta", lambda b: b.writer.apply([b.ints], _table(1, torch.uint64)), ValueError, "on meta", "or None"),
    ("ptrs of a list", lambda b: b.writer.apply([b.ints], [0]), TypeError, "output_ptrs is a list", "or None"),
    ("strides of int32", lambda b: b.writer.apply([b.ints], None, _table(1, torch.int32, b.device)), ValueError,
     "output_strides",
     "int32", "torch.int64"),
    ("publish of another", lambda b: b.manager.publish([_changed(b), _backed(b)]), ValueError, "tensors[1]",
     "another manager"),
    ("publish of a number", lambda b: b.manager.publish([_changed(b), 5]), TypeError, "tensors[1] is a int"),
    ("publish of a pool", lambda b: b.manager.publish([_changed(b), b.pool]), TypeError, "tensors[1]",
     "UvaBackedTensor"),
    ("past the budget", lambda b: b.pool.copy_to_uva(np.zeros(1 << 20, np.int32)), MemoryLimitError,
     f"limit_bytes={1 << 20}",
     "raise the limit"),
    ("out past the budget", lambda b: b.pool.copy_to_gpu(np.zeros(1 << 20, np.int32)), MemoryLimitError,
     "limit_bytes="),
    ("transfer past the budget", lambda b: staging.async_tensor_h2d(np.zeros(1 << 20), manager=b.manager),
     MemoryLimitError,
     "limit_bytes="),
    ("buffer past the budget", lambda b: staging.UvaBuffer(1 << 21, torch.int8, manager=b.manager), MemoryLimitError,
     "limit_bytes="),
    ("write past the budget", lambda b: _long(b).stage_write(0, 0, np.ones(1 << 19, np.int32)), MemoryLimitError,
     "limit_bytes="),
    ("apply past the budget", lambda b: _full(b).apply_write(), MemoryLimitError, "limit_bytes="),
    ("step in a step", lambda b: (b.enter(b.manager.step()), b.enter(b.manager.step())), staging.StagingError,
     "inside another", "end"),
    ("end_step in a step", lambda b: (b.enter(b.manager.step()), b.manager.end_step()), staging.StagingError,
     "end_step() inside"),
]  # fmt: skip


def _stranger(b):
    return staging.StagedWriteTensor(4, torch.int32, manager=b.other().manager)


def _backed(b):
    return staging.UvaBackedTensor(4, torch.int32, manager=b.other().manager)


def _changed(b):
    """A backed tensor that has something new to publish, had the call been right."""
    b.backed.np[1] = 5
    return b.backed


def _long(b):
    b.kept = staging.StagedWriteTensor((1, 1 << 20), torch.int32, manager=b.manager)
    return b.kept


def _full(b):
    tensor = _long(b)
    for start in range(0, 1 << 19, 1 << 10):  # writes short enough to wait on the host
        tensor.stage_write(0, start, np.ones(1 << 10, np.int32))
    return tensor
