"""One cell of the rig in this process: a scenario against a target on a backend, as a worker would run it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from targets.faults import PLAIN, planted

from rig import headroom, ops
from rig.cause import Finding
from rig.controls import defaults
from rig.drive import Progress, drive
from rig.judge import Cell, Result, measure, verify
from rig.loading import loaded
from rig.readers import AtOnce, Late
from rig.target import Target
from rig.verify import Verify
from rig.words import Payload
from staging.backends.sim import SimDevice

CPU = torch.device("cpu")
if torch.cuda.is_available():  # CPU seats and CUDA share the process of the tests, which they never do in a run
    import staging.kernels  # noqa: F401 - compiled, before a CPU seat asks for Triton's interpreter

    headroom._free_nbytes = lambda: None  # a CPU seat's bound on memory would keep CUDA from starting


@dataclass
class Judged:
    """What a pass found, and its result."""

    found: list[Finding]
    result: Result

    @property
    def kinds(self) -> set[str]:
        return {finding.kind for finding in self.found}


def spec(target: str, source: str | None = None) -> dict[str, Any]:
    """A built-in target, or a file's."""
    kind = "builtin" if source is None else "file"
    return {"name": target, "kind": kind, "module": None, "source": source, "path": None, "sha256": None}


def judged(
    scenario: str, target: str, backend: str, *, timed: bool = False, ledger: bool = False, seed: int = 5, **params: Any
) -> Judged:
    """Run a built-in target, "plain", or plain.py with a fault from targets/faults.py."""
    builtin = target.partition(":")[0] in ("staging", "model", "faulty")
    source = None if builtin else PLAIN if target == "plain" else planted(target)
    cell = Cell(
        scenario=scenario,
        params=defaults(scenario) | params,
        backend=backend,
        device=CPU,
        seed=seed,
        seat="s0",
        ledger=ledger,
    )
    with loaded(spec(target, source), device=CPU) as module:
        return exhausted((measure if timed else verify)(cell, module, progress=Progress()))


def performed(
    stream: list[ops.Op], module: Any, *, backend: str = "sim", schedule: str = "late"
) -> tuple[list[Finding], Verify]:
    """Drive a hand-written stream against a module without a manager."""
    payload, target = Payload(seed=1, seat="s0"), Target(module, device=CPU)
    readers = Late(SimDevice(1, schedule=schedule)) if backend == "sim" else AtOnce()
    observer = Verify(target=target, readers=readers, payload=payload)
    found = list(drive(stream, target=target, observer=observer, payload=payload, progress=Progress()))
    return found, observer


def plain(source: str = PLAIN) -> Any:
    """plain.py as a fresh module."""
    with loaded(spec("plain", source), device=CPU) as module:
        return module


def exhausted(steps: Any) -> Judged:
    found = []
    while True:
        try:
            found.append(next(steps))
        except StopIteration as stop:
            return Judged(found, stop.value)
