"""Everything that one seat does, without Ray: describe itself, run controls, judge assignments."""

from __future__ import annotations

import gc
import os
import platform
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch

from rig import controls, minimum, registry
from rig.apart import Apart
from rig.bench import Benched, bench
from rig.body import Body, not_imported
from rig.cause import Finding
from rig.drive import Progress
from rig.errors import UsageError
from rig.headroom import bound_memory
from rig.incident import Proved, prove
from rig.judge import Cell, Result, device_of, measure, verify
from rig.loading import ImportFailedError, contenders, loaded
from rig.search import Searched, search

_CPU_BACKENDS = ("sim", "cpu")
T = TypeVar("T", Result, Benched, Searched, Proved)


class Worker:
    """One seat in this process. `device` is "cpu" or "cuda:N", N within the visible devices; `seed` is the run's, which
    every assignment's seed comes from. `apart`: what foreign targets did is shrunk in a process of its own.

    One thread calls it; `progress` may be called from another. Everything it yields is made of builtins.
    """

    def __init__(self, *, seat: str, device: str, seed: int, apart: bool = True) -> None:
        self.seat, self.device, self.seed = seat, device, seed
        self._progress = Progress()
        self._proofs: dict[str, str | None] = {}
        self._lost_in: str | None = None  # the assignment that cost this process its device
        self._guest: str | None = None  # the target whose code ran last, if it is not the rig's own
        self._unfit: str | None = None  # why this process can judge nothing any more
        self._unbind: Callable[[], None] = lambda: None
        self._apart = Apart(device=device, seed=seed) if apart else None
        if device == "cpu":
            os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a target defines its kernels
            self._unbind = bound_memory()
            torch.set_num_threads(1)  # such seats share a host, and what is judged is one thread's order of calls
        else:
            from rig.device import make_current

            make_current(torch.device(device))

    def describe(self) -> dict[str, Any]:
        """Where the seat is and what it can do: node, device, uuid, backends with their proofs, environment."""
        from staging import backends

        proofs = [backends.probe(name, device_of(name, self.device))[0] for name in backends.names()]
        listed = [{"name": p.name, "probe": "ok" if p.ok else "failed", "reason": p.reason} for p in proofs]
        environment: dict[str, Any] = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "os": platform.platform(),
            "cpus": os.cpu_count() or 0,
            "pid": os.getpid(),
        }
        uuid = None
        if self.device != "cpu":
            from rig.device import facts

            uuid, more = facts(torch.device(self.device))
            environment |= more
        return {
            "node": socket.gethostname(),
            "device": self.device,
            "uuid": uuid,
            "backends": listed,
            "environment": environment,
        }

    def controls(self, backends: list[str]) -> Iterator[dict[str, Any]]:
        """Each control that must show on one of `backends`: name, seat, backend, expected_kind, caught, detail."""
        self._progress = Progress(stage="controls")
        for backend in backends:
            if backend in _CPU_BACKENDS or self.device != "cpu":
                yield from controls.check_all([backend], device=self.device, seat=self.seat)

    def run(self, assignment: dict[str, Any], target: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Judge one assignment: any number of finding bodies, the replays of the first of each kind, then exactly one
        assignment body.

        An exception in the rig's own code is verdict ERROR with its traceback; nothing but KeyboardInterrupt is raised.
        """
        begin, begin_ns = time.monotonic(), time.perf_counter_ns()
        deadline_ns = begin_ns + int(assignment["timeout_s"] * 1e9)
        self._progress = Progress(assignment=assignment["id"], deadline_ns=deadline_ns)
        body = Body(assignment)
        found: list[tuple[Finding, int]] = []
        try:
            for finding in self._judge(assignment, target, body):
                body.findings.append(finding)
                found.append((finding, self._progress.step))
                yield finding.body(assignment["id"])
            # A list may take as long as the whole pass did, and has to end before the assignment's time does.
            latest_ns = deadline_ns - (time.perf_counter_ns() - begin_ns)
            yield from self._shrunk(assignment, target, body, found, latest_ns=latest_ns)
        except Exception:
            body.verdict, body.reason = "ERROR", traceback.format_exc()
        if self.device != "cpu":
            gc.collect()  # what is in cycles would keep device memory
        yield body.record(elapsed_s=time.monotonic() - begin)
        self._progress = Progress()

    def progress(self) -> dict[str, Any]:
        """The assignment, its step and its stage; safe from another thread."""
        progress = self._progress
        return {"assignment": progress.assignment, "step": progress.step, "stage": progress.stage}

    def close(self) -> None:
        """Nothing outlives an assignment but the bound on memory and the process apart."""
        if self._apart is not None:
            self._apart.close()
        self._unbind()

    def _judge(self, assignment: Mapping[str, Any], target: Mapping[str, Any], body: Body) -> Iterator[Finding]:
        """Fill in `body`; yields the findings."""
        backend, baseline = assignment["backend"], target.get("baseline")
        if self._lost_in is not None:
            body.verdict, body.reason = "INCOMPLETE", f"the device was lost in {self._lost_in}"
            return
        for spec in filter(None, (target, baseline)):
            if reason := self.unsuited(backend, spec):
                body.skip(reason)
                return
        if self._spoilt(backend, target, baseline):
            body.verdict, body.reason = "INCOMPLETE", self._unfit or ""
            return
        cell = Cell(
            scenario=assignment["scenario"],
            params=assignment["params"],
            backend=backend,
            device=device_of(backend, self.device),
            seed=assignment["seed"],
            seat=self.seat,
            ledger=assignment.get("ledger", False),
        )
        if hasattr(registry.load("scenarios", cell.scenario), "CASES"):
            yield from self._bench(cell, assignment, target, body)
            return
        mode = assignment["mode"]
        try:
            if hasattr(registry.load("scenarios", cell.scenario), "SEARCH"):
                body.searched(self._noted(search(cell, target, progress=self._progress), assignment))
                return
            if hasattr(registry.load("scenarios", cell.scenario), "PROVES"):
                body.proved(self._noted((yield from prove(cell, target, progress=self._progress)), assignment))
                return
            if mode in ("verify", "both"):
                self._progress.stage = "verify"
                with loaded(target, device=cell.device) as module:
                    body.verified(self._noted((yield from verify(cell, module, progress=self._progress)), assignment))
                body.driven = cell if body.findings else None
            if mode in ("measure", "both") and not body.findings and body.verdict == "PASS":
                self._progress.stage = "measure"
                with loaded(target, device=cell.device) as module:
                    body.measured(self._noted((yield from measure(cell, module, progress=self._progress)), assignment))
        except ImportFailedError as error:
            yield from not_imported(error, target, body)

    def _shrunk(
        self,
        assignment: Mapping[str, Any],
        target: Mapping[str, Any],
        body: Body,
        found: list[tuple[Finding, int]],
        *,
        latest_ns: int,
    ) -> Iterator[dict[str, Any]]:
        """The replays of what a verify pass found, made within `shrink_s` seconds and before `latest_ns`."""
        shrink_s = assignment.get("shrink_s", 0)
        if not shrink_s or body.driven is None or self._lost_in is not None:
            return
        self._progress.stage = "shrink"
        yield {"type": "shrinking", "kinds": sorted({finding.kind for finding, _ in found})}
        until_ns = min(latest_ns, time.perf_counter_ns() + int(shrink_s * 1e9))
        try:
            if self._apart is not None and _is_foreign(target):
                bodies = self._apart.replays(body.driven, target, found, seconds=shrink_s, latest_ns=latest_ns)
            else:
                bodies = minimum.replays(body.driven, target, found, until_ns=until_ns)
            for replay in bodies:
                body.replayed(replay)
                yield replay
        except minimum.DeviceLostError:
            self._lost_in = assignment["id"]

    def _bench(
        self, cell: Cell, assignment: Mapping[str, Any], target: Mapping[str, Any], body: Body
    ) -> Iterator[Finding]:
        """A timed scenario, alone or against the target's baseline."""
        try:
            with contenders(target, device=cell.device) as (one, *others):
                benched = yield from bench(cell, one, next(iter(others), None), progress=self._progress)
                body.benched(self._noted(benched, assignment))
        except ImportFailedError as error:
            yield from not_imported(error, target, body)
        except UsageError as error:  # a file that lies on the driver's machine, but not on this one
            body.verdict, body.reason = "INCOMPLETE", str(error)

    def _noted(self, result: T, assignment: Mapping[str, Any]) -> T:
        if result.device_lost:
            self._lost_in = assignment["id"]
        return result

    def _spoilt(self, backend: str, target: Mapping[str, Any], baseline: Mapping[str, Any] | None) -> bool:
        """Whether an earlier target's code left this process unfit to judge: a control tells, when targets change."""
        guests = [spec["name"] for spec in (target, baseline) if spec and _is_foreign(spec)]
        before, self._guest = self._guest, guests[-1] if guests else None
        if before is not None and before not in (target["name"], *guests) and self._unfit is None:
            control = next(c for c in controls.CONTROLS if backend in c.backends)
            try:
                record = controls.check(control, backend=backend, device=self.device, seat=self.seat)
                detail = None if record["caught"] else record["detail"]
            except Exception as error:
                detail = f"{type(error).__name__}: {error}"
            if detail is not None:
                self._unfit = f"target {before} left this process unfit to judge: control {control.fault}: {detail}"
        return self._unfit is not None

    def unsuited(self, backend: str, target: Mapping[str, Any]) -> str | None:
        """Why this seat cannot judge a target on a backend, or None."""
        if backend in _CPU_BACKENDS:
            if self.device == "cpu" or not _is_foreign(target):
                return None
            return f"backend {backend} judges foreign targets on CPU seats; this seat is {self.device}"
        if self.device == "cpu":
            return f"needs a GPU: backend {backend} on a CPU seat"
        if backend not in self._proofs:
            from staging.backends import probe

            result, _ = probe(backend, torch.device(self.device))
            self._proofs[backend] = None if result.ok else f"backend {backend} did not prove itself: {result.reason}"
        return self._proofs[backend]


def _is_foreign(target: Mapping[str, Any]) -> bool:
    """Whether a target finds its device itself."""
    name = target["name"].partition(":")[0]
    return target["kind"] != "builtin" or getattr(registry.load("targets", name), "FOREIGN", False)
