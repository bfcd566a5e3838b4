"""Values at the edges of each type: what payloads are made of where a word of random bits would not do.

"extremes" are finite and pass through Python numbers unchanged; "nan" adds infinities and NaN payloads, which only
arrays and tensors carry. All are bits, so -0.0 and 0.0 differ.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FLOATS = {"float16": (5, 10), "bfloat16": (8, 7), "float32": (8, 23), "float64": (11, 52)}  # exponent, fraction bits
_SIZES = {"bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8}


@lru_cache(maxsize=64)
def table(dtype: str, fill: str) -> NDArray[Any]:
    """The bits of each edge value of a type, as unsigned integers of its size."""
    if dtype == "bool":
        return np.array([0, 1], np.uint8)
    if dtype not in _FLOATS:
        size = 8 * _SIZES[dtype]
        top, ones = 1 << (size - 1), (1 << size) - 1
        alternating = ones // 3
        return np.array([0, 1, ones, top, top - 1, top + 1, alternating, ones ^ alternating, 0], f"u{size // 8}")
    exponent, fraction = _FLOATS[dtype]
    sign, inf = 1 << (exponent + fraction), ((1 << exponent) - 1) << fraction
    finite = [0, sign, 1, sign | 1, 1 << fraction, inf - 1, sign | (inf - 1), (1 << fraction) - 1, inf >> 1 | 1]
    quiet = inf | 1 << (fraction - 1)  # a signalling NaN may be quieted by any copy through a register
    nans = [inf, sign | inf, quiet, sign | quiet, quiet | 1, sign | quiet | 0x2B] if fill == "nan" else []
    return np.array(finite + nans, f"u{(1 + exponent + fraction) // 8}")
