"""The calls of an engine's step, each timed as one whole and held against another target, or against a plain floor."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rig.ops import Param
from rig.scenarios import _floors, _published, _writes
from rig.scenarios._writes import Rng, Work
from rig.timed import Bout, Loop

if TYPE_CHECKING:
    from rig.client import Client

SUMMARY = "staged writes, publishes and a decode step, each timed as a whole against another target"
_ON_GPU, _ON_CPU = "gpu", "cpu"
_Prepare = Callable[["Client", Rng], Work]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What is timed, and against what: nothing said means the target that `compare` names.

    `floor` is the same work without a target, `rival` what another manager of the same target is built with.
    """

    work: _Prepare
    against: str | None = None
    floor: _Prepare | None = None
    rival: Mapping[str, Any] | None = None
    only_on: str | None = None  # "gpu" or "cpu"; else both


def _copy(mib: int) -> _Case:
    work, floor = (partial(function, nbytes=mib << 20) for function in (_writes.copy, _floors.plain_copy))
    return _Case(work=work, against="copy_", floor=floor, only_on=_ON_GPU)


def _numpy(work: Callable[..., Work], num: int) -> _Case:
    floor = partial(_floors.numpy_elements, num=num)
    return _Case(work=partial(work, num=num), against="numpy", floor=floor, only_on=_ON_CPU)


def _tokens(work: _Prepare, floor: _Prepare) -> _Case:
    return _Case(work=work, against="numpy", floor=floor, only_on=_ON_CPU)


def _told(tracking: str) -> tuple[_Case, _Case]:
    """Changed and unchanged."""
    works = (partial(work, tracking=tracking) for work in (_published.changed, _published.unchanged))
    changed, unchanged = (_Case(work=work) for work in works)
    return changed, unchanged


_CASES: dict[str, _Case] = {
    **dict(zip(("backed_changed", "backed_unchanged_compare"), _told("compare"), strict=True)),
    **dict(zip(("backed_changed_caller", "backed_unchanged_caller"), _told("caller"), strict=True)),
    "decode_step": _Case(work=_published.decode_step),
    "decode_step_trust": _Case(work=_published.decode_step, against="guard=trust", rival={"guard": "trust"}),
    "elements_each": _Case(work=_writes.elements_each),
    "elements_batch": _Case(work=_writes.elements_batch),
    "elements_batch_shuffled": _Case(work=_writes.elements_batch_shuffled),
    "fused_each": _Case(work=_writes.fused_each),
    "fused_batch": _Case(work=_writes.fused_batch),
    "tokens_list": _Case(work=_writes.tokens_list),
    "tokens_array": _Case(work=_writes.tokens_array),
    "prompts_list": _Case(work=_writes.prompts_list),
    "copy_1mb": _copy(1),
    "copy_8mb": _copy(8),
    "copy_64mb": _copy(64),
    "numpy_256_apply": _numpy(_writes.elements_apply, 256),
    "numpy_256_batch": _numpy(_writes.elements_batch, 256),
    "numpy_2048_apply": _numpy(_writes.elements_apply, 2048),
    "numpy_2048_batch": _numpy(_writes.elements_batch, 2048),
    "numpy_131072_list": _tokens(_writes.tokens_list, _floors.numpy_tokens_list),
    "numpy_131072_apply": _tokens(_writes.tokens_apply, _floors.numpy_tokens_array),
}
CASES = {name: case.against for name, case in _CASES.items()}  # None: against the target that `compare` names
INVARIANTS = ("every case is the same work on both sides; inputs are prepared and the device is idle before each call",)
PARAMS: dict[str, Param] = {
    "cases": Param(
        list(_CASES), "list", choices=tuple(_CASES), help="which; what a seat or a target cannot do is left out"
    ),
    "rounds": Param(21, "int", 1, 10_000, help="of each side, in turn"),
    "round_ms": Param(10.0, "float", 0.01, 10_000, help="how long one round of one side should take"),
}


def bouts(params: Mapping[str, Any], *, seed: int, on_gpu: bool, own: bool) -> Iterator[Bout]:
    """The cases that fit the seat. `own`: the target is built on our library, whose calls take arrays."""
    for name, case in _CASES.items():
        fits = case.only_on in (None, _ON_GPU if on_gpu else _ON_CPU) and (own or case.against is None)
        if name in params["cases"] and fits:
            side = partial(_side, name=name, seed=seed, round_ms=params["round_ms"])
            reference = partial(side, prepare=case.floor) if case.floor else None
            build = partial(side, prepare=case.work)
            yield Bout(name=name, build=build, against=case.against, reference=reference, rival=case.rival)


def _side(client: Client, *, name: str, prepare: _Prepare, seed: int, round_ms: float) -> Loop:
    """Both sides draw the same inputs."""
    work = prepare(client, np.random.default_rng([seed, zlib.crc32(name.encode())]))
    return Loop(name, work.call, before=work.before, sync=client.sync, round_ms=round_ms)
