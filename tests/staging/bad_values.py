"""Values that do not fit, by every way in: (name, call on a bench, error, fragments of its text)."""

from __future__ import annotations

import math

import numpy as np
import torch

import staging

VALUES = [  # name, dtype of the target, values, error, fragments
    ("300", torch.int8, [300], OverflowError, "300", "int8", "-128 to 127"),
    ("array of 300", torch.int8, np.array([300]), OverflowError, "300", "int8", "-128 to 127"),
    ("tensor of 300", torch.int8, torch.tensor([300]), OverflowError, "300", "int8", "-128 to 127"),
    ("-1", torch.uint64, [-1], OverflowError, "-1", "uint64", f"0 to {2**64 - 1}"),
    ("array of -1", torch.uint64, np.array([-1], np.int8), OverflowError, "-1", "uint64"),
    ("2", torch.bool, [2], OverflowError, "2", "bool", "0 to 1"),
    ("2**31", torch.int32, np.array([2**31]), OverflowError, str(2**31), "int32", f"to {2**31 - 1}"),
    ("2**64", torch.int64, [2**64], OverflowError, str(2**64), "int64", f"to {2**63 - 1}"),
    ("1.0", torch.int32, [1.0], TypeError, "1.0", "int32", "convert it before"),
    ("float array", torch.int32, np.array([0.5]), TypeError, "0.5", "int32", "convert it before"),
    ("nan", torch.int64, [math.nan], TypeError, "nan", "int64", "convert it before"),
    ("inf", torch.int16, [math.inf], TypeError, "inf", "int16", "convert it before"),
    ("float into bool", torch.bool, torch.tensor([1.0]), TypeError, "1.0", "bool", "convert it before"),
    ("2**53+1", torch.float64, [2**53 + 1], OverflowError, str(2**53 + 1), "float64", "round it"),
    ("array of 2**53+1", torch.float64, np.array([2**53 + 1]), OverflowError, str(2**53 + 1), "round it"),
    ("257", torch.bfloat16, [257], OverflowError, "257", "bfloat16", "round it"),
    ("65505", torch.float16, [65505], OverflowError, "65505", "float16", "round it"),
    ("65536", torch.float16, np.array([65536]), OverflowError, "65536", "float16", "round it"),
    ("1e39", torch.float32, [1e39], OverflowError, "1e+39", "float32", "infinite"),
    ("tensor of 1e39", torch.bfloat16, torch.tensor([1e39], dtype=torch.float64), OverflowError, "1e+39", "infinite"),
    ("longdouble", torch.float32, np.ones(1, np.longdouble), TypeError, "wider than float64", "convert"),
    ("text", torch.int32, ["1"], TypeError, "<U1", "int32"),
    ("bytes", torch.uint8, [b"1"], TypeError, "|S1", "uint8"),
    ("None", torch.int32, [None], TypeError, "None", "int32"),
    ("object", torch.float32, [1.5, object()][1:], TypeError, "object", "float32"),
    ("complex", torch.float32, [1j], TypeError, "complex128", "float32"),
    ("complex tensor", torch.float32, torch.ones(1, dtype=torch.complex64), TypeError, "complex64", "float32"),
    ("float8 tensor", torch.int8, torch.ones(1, dtype=torch.float8_e5m2), TypeError, "float8_e5m2", "int8"),
    ("date", torch.int64, np.array(["2026-01-01"], "M8[D]"), TypeError, "datetime64", "int64"),
    ("ragged", torch.int32, [[1], [2, 3]], ValueError, "inhomogeneous"),
    ("on meta", torch.int32, torch.ones(1, dtype=torch.int32, device="meta"), ValueError, "meta", ".cpu()"),
]  # fmt: skip
WAYS = {
    "stage_write": lambda b, dtype, x: b.tensor(dtype).stage_write(0, 0, x),
    "stage_writes": lambda b, dtype, x: b.tensor(dtype).stage_writes([0], 0, x),
    "stage_write_elem": lambda b, dtype, x: b.tensor(dtype).stage_write_elem(0, x),
    "fused": lambda b, dtype, x: b.writer.stage([b.tensor(dtype), b.flat], [0], 0, 0, x, None),
    "pool": lambda b, dtype, x: b.pool_of(dtype)[0].copy_to_uva(x),
    "gpu": lambda b, dtype, x: b.pool_of(dtype)[0].copy_to_gpu(x),
    "transfer": lambda b, dtype, x: staging.async_tensor_h2d(x, dtype=dtype, manager=b.manager),
}


class Breaks:
    """An element whose own conversion raises."""

    def __index__(self):
        raise KeyError("broken element")


def midway():
    """An iterable that raises after its first value."""
    yield 1
    raise KeyError("midway")


BAD_VALUES = [
    *((f"{way} {name}", lambda b, w=w, dtype=dtype, x=x: w(b, dtype, x), *due)
      for name, dtype, x, *due in VALUES for way, w in WAYS.items()),
    *((f"{way} midway", lambda b, w=w: w(b, torch.int32, midway()), KeyError, "midway") for way, w in WAYS.items()),
    *((f"{way} breaks", lambda b, w=w: w(b, torch.int32, [Breaks()]), KeyError, "broken") for way, w in WAYS.items()),
    ("one bad of many", lambda b: b.ints.stage_write(0, 0, [1, 2, 3, 2**31, 5]), OverflowError, str(2**31), "int32"),
    ("meta element", lambda b: b.ints.stage_write(0, 0, [torch.ones((), device="meta").long()]), RuntimeError, "meta"),
    ("sparse", lambda b: b.ints.stage_write(0, 0, torch.ones(2).to_sparse()), ValueError, "sparse", ".to_dense()"),
    ("rank 2", lambda b: b.ints.stage_write(0, 0, [[1, 2]]), ValueError, "rank 2", "flat"),
    ("rank 0", lambda b: b.ints.stage_write(0, 0, 5), ValueError, "rank 0", "flat"),
    ("two for one", lambda b: b.ints.stage_write_elem(0, [1, 2]), ValueError, "one value, not 2", "stage_write"),
    ("none for one", lambda b: b.ints.stage_write_elem(0, []), ValueError, "one value, not 0"),
    ("pool's trailing shape", lambda b: b.wide.copy_to_uva([[1, 2]]), ValueError, "(1, 2)", "(3,)"),
    ("pool's rank", lambda b: b.wide.copy_to_uva([1, 2, 3]), ValueError, "(3,)", "rows of shape"),
    ("pool of a scalar", lambda b: b.pool.copy_to_uva(5), ValueError, "shape ()"),
    ("pool of nothing", lambda b: b.pool.copy_to_uva(None), TypeError, "None", "int32"),
    ("lease's trailing shape", lambda b: b.wide.lease([[1, 2, 3, 4]]), ValueError, "(1, 4)", "(3,)"),
    ("text to the device", lambda b: staging.async_tensor_h2d("abc", manager=b.manager), TypeError, "<U3"),
    ("ragged to the device", lambda b: staging.async_tensor_h2d([[1], [2, 3]], manager=b.manager), ValueError,
     "ragged"),
    ("complex to the device",
     lambda b: staging.async_tensor_h2d(torch.empty(0, dtype=torch.complex64), manager=b.manager),
     TypeError, "complex64", "choose one of"),
]  # fmt: skip
