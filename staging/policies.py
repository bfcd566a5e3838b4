"""The choices a manager is given, and what is wrong with a bad one."""

from __future__ import annotations

import math
from typing import Literal

from staging.dtypes import whole

Guard = Literal["wait", "raise", "grow", "trust"]
GUARDS = ("wait", "raise", "grow", "trust")

OnLimit = Literal["raise", "pageable"]

Growth = str | float
"""The name of a policy, pow2 or exact, or a factor over 1."""


def check_guard(guard: Guard) -> Guard:
    """`guard` if it is one; raises ValueError."""
    if guard not in GUARDS:
        raise ValueError(f"guard={guard!r}: choose one of {', '.join(GUARDS)}")
    return guard


def check_on_limit(on_limit: OnLimit) -> OnLimit:
    """`on_limit` if it is one; raises ValueError."""
    if on_limit not in ("raise", "pageable"):
        raise ValueError(f"on_limit={on_limit!r}: choose 'raise' or 'pageable'")
    return on_limit


def check_depth(depth: int | None) -> int | None:
    """`depth` if a pool can have it; raises ValueError, or TypeError for no integer."""
    if depth is not None and whole(depth, "depth") < 1:
        raise ValueError(f"depth={depth}: a pool needs at least 1 slot")
    return depth


def check_limit_bytes(limit_bytes: int | None) -> int | None:
    """`limit_bytes` if it can be one; raises ValueError, or TypeError for no integer."""
    if limit_bytes is not None and whole(limit_bytes, "limit_bytes") < 0:
        raise ValueError(f"limit_bytes={limit_bytes}: give bytes >= 0, or None for no limit")
    return limit_bytes


def check_wait_timeout_s(wait_timeout_s: float | None) -> float | None:
    """`wait_timeout_s` if it can be one; raises ValueError."""
    if wait_timeout_s is None or (isinstance(wait_timeout_s, (int, float)) and wait_timeout_s >= 0):
        return wait_timeout_s
    raise ValueError(f"wait_timeout_s={wait_timeout_s!r}: give seconds >= 0, or None for no limit")


def check_growth(growth: Growth) -> Growth:
    """`growth` if it is a policy: "pow2", "exact" or a finite factor over 1; raises ValueError."""
    if growth in ("pow2", "exact"):
        return growth
    if isinstance(growth, (int, float)) and not isinstance(growth, bool) and 1 < growth < math.inf:
        return growth
    raise ValueError(f"growth={growth!r}: choose 'pow2', 'exact' or a factor over 1")


def grown(growth: Growth, *, needed: int, rows: int) -> int:
    """Rows to allocate where `rows` are not enough for `needed`."""
    if growth == "exact":
        return needed
    if growth == "pow2":
        return 1 << (needed - 1).bit_length()
    return max(needed, math.ceil(rows * float(growth)))
