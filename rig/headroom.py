"""A ceiling for what a target may allocate on a CPU seat, so that one which never stops fails instead of the host."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

_SHARE = 0.4  # of what is free when the seat starts: two seats of one host must not fill it together
_LEAST = 2 << 30  # bytes a seat needs for itself


def bound_memory() -> Callable[[], None]:
    """Let this process allocate at most 40 % of what the host has free now; beyond that an allocation fails.

    The limit is Linux's on private memory (RLIMIT_DATA). Returns what takes it back. Without figures of the host
    nothing is bound.
    """
    free, held = _free_nbytes(), _held_nbytes()
    if free is None or held is None:
        return lambda: None
    limit = held + max(_LEAST, int(_SHARE * free))
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bounds = [bound for bound in (soft, hard, limit) if bound != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(bounds), hard))
    return lambda: resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _free_nbytes() -> int | None:
    """Bytes that may still be used: the host's, or what a container's limit leaves."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    free = next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
    except OSError:
        return free
    left = int(limit) - used if limit.isdecimal() else free
    return left if free is None or left is None else min(free, left)


def _held_nbytes() -> int | None:
    """Bytes that count against the limit already."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:")), None)
