"""Whether a device sees what the host writes into memory after it was mapped, for each kind of host memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

_NUM_WORDS = 1 << 18  # a megabyte, so that no page of it is anybody else's
_BEFORE, _WRITTEN = 3, (7, 11)


class Liveness(NamedTuple):
    """`state` is live, stale or refused; the reason has what was read, or what was raised."""

    state: str
    reason: str


def liveness(kind: str, device: torch.device) -> Liveness:
    """Map memory of one of MEMORY_KINDS for a CUDA device, write it, and read it by a kernel.

    One device a process: torch hands the same pinned memory out again, and it stays with the device that had it first.
    """
    try:
        with _host(kind) as host:
            return observed(host, lambda: alias_of(host, device))
    except RuntimeError as error:
        return Liveness("refused", str(error).strip().partition("\n")[0])


def observed(host: torch.Tensor, map_it: Callable[[], torch.Tensor]) -> Liveness:
    """What a reader of the mapping sees of two writes that follow it."""
    host.fill_(_BEFORE)
    alias, seen = map_it(), []
    for value in _WRITTEN:
        host.fill_(value)
        seen.append(int((alias + 0)[-1]))  # the sum is made by a kernel, where the alias lives
    if seen == list(_WRITTEN):
        return Liveness("live", "writes after the mapping were read back")
    return Liveness("stale", f"the device read {seen} where the host wrote {list(_WRITTEN)} after the mapping")


def alias_of(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The device's view of host memory at the same address; RuntimeError where there can be none."""
    alias = torch.as_tensor(_Mapped(host.view(torch.uint8)), device=device)
    return alias.view(host.dtype)


class _Mapped:
    def __init__(self, raw: torch.Tensor) -> None:
        self.raw = raw

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.raw.numel(),), "typestr": "|u1", "data": (self.raw.data_ptr(), False), "version": 3}


@contextmanager
def _host(kind: str) -> Iterator[torch.Tensor]:
    host = torch.zeros(_NUM_WORDS, dtype=torch.int32, pin_memory=kind == "pinned")
    if kind == "pinned" and not host.is_pinned():
        raise RuntimeError("the system grants no page-locked memory")
    if kind != "registered":
        yield host
        return
    from rig.device import registered

    with registered(host):
        yield host
