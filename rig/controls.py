"""Controls: planted faults that a seat must catch before its verdicts count, each with a clean twin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rig import registry
from rig.drive import Progress
from rig.judge import Cell, Result, device_of, verify
from rig.loading import loaded

RACES = ("sim", "cuda_uva", "cuda_copy")
MAPPED = ("sim", "cuda_uva")
ALL = ("sim", "cpu", "cuda_uva", "cuda_copy")
_SEED = 1  # one stream for every run: whether a control is caught is no matter of luck


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A fault of target `faulty`, a scenario in which it shows on `backends`, and the kind it must be found as."""

    fault: str
    scenario: str
    params: Mapping[str, Any]
    backends: tuple[str, ...]
    kind: str


_POOLS = {"num_steps": 12, "rows": 64, "num_backed": 0, "copies_every": 0, "num_pools": 1, "prefix_every": 0}
_WRITES = {
    "num_steps": 4,
    "rows": 4,
    "cols": 1300,
    "length": 1300,
    "dtypes": ["int32"],
    "writes_per_apply": 4,
    "clear_every": 0,
}
_QUEUED = {"in_flight": 6, "stall_us": 2000, "beyond_contract": True}

CONTROLS: tuple[Control, ...] = (
    Control(fault="unfenced_reuse", scenario="slot_reuse", params=_POOLS | _QUEUED, backends=RACES, kind="slot_reuse"),
    Control(
        fault="early_free",
        scenario="growth",
        params={"num_steps": 12, "rows": 16, "rows_max": 1 << 14, "every": 1, "num_pools": 1} | _QUEUED,
        backends=MAPPED,
        kind="use_after_free",
    ),
    Control(fault="stale_alias", scenario="slot_reuse", params=_POOLS, backends=ALL, kind="stale_alias"),
    Control(fault="off_by_one", scenario="ragged_writes", params=_WRITES, backends=ALL, kind="spill"),
    Control(fault="lost_last_chunk", scenario="ragged_writes", params=_WRITES, backends=ALL, kind="lost_write"),
    Control(
        fault="first_writer_wins",
        scenario="ragged_writes",
        params=_WRITES | {"overlap": True, "beyond_contract": True},
        backends=ALL,
        kind="wrong_winner",
    ),
)


def check(control: Control, *, backend: str, device: str, seat: str) -> dict[str, Any]:
    """Run one control and its clean twin; the record's body says whether it was caught, and if not, why."""
    cell = Cell(
        scenario=control.scenario,
        params=defaults(control.scenario) | dict(control.params),
        backend=backend,
        device=device_of(backend, device),
        seed=_SEED,
        seat=seat,
    )
    found, result = _run(cell, f"faulty:{control.fault}")
    hit = next((finding for finding in found if finding.kind == control.kind), None)
    twin_found, twin = _run(cell, "model")
    detail = hit.summary if hit else f"not caught: {_seen(found, result)}"
    clean = not twin_found and twin.skip is None and twin.checked.words > 0
    if not clean:
        detail = f"the clean twin is not clean: {_seen(twin_found, twin)}; {detail}"
    return {
        "name": control.fault,
        "seat": seat,
        "backend": backend,
        "expected_kind": control.kind,
        "caught": hit is not None and clean,
        "detail": detail,
    }


def check_all(backends: Sequence[str], *, device: str, seat: str) -> Iterator[dict[str, Any]]:
    """Every control that must show on one of `backends`, in the table's order."""
    for backend in backends:
        for control in CONTROLS:
            if backend in control.backends:
                yield check(control, backend=backend, device=device, seat=seat)


def defaults(scenario: str) -> dict[str, Any]:
    """The default of each of a scenario's parameters."""
    return {name: param.default for name, param in registry.load("scenarios", scenario).PARAMS.items()}


def _run(cell: Cell, target: str) -> tuple[list[Any], Result]:
    spec = {"name": target, "kind": "builtin", "module": None, "source": None, "path": None, "sha256": None}
    found = []
    with loaded(spec, device=cell.device) as module:
        steps = verify(cell, module, progress=Progress())
        while True:
            try:
                found.append(next(steps))
            except StopIteration as stop:
                return found, stop.value


def _seen(found: Sequence[Any], result: Result) -> str:
    if found:
        return "; ".join(f"{finding.kind}: {finding.summary}" for finding in found[:3])
    return result.skip or f"no finding in {result.checked.words} checked words"
