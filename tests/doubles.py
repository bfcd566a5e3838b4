"""Doubles of the rig's own tests: a worker that does as told, a crew without processes, records made by hand."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rig.dispatch import Batch, Done, Event, Job, Lost
from rig.records import Record, record_id
from rig.shell import Shell
from rig.stats import Histogram

RUN = "run-1"
CELL = "slot_reuse:staging:sim:depth=2"


class ToldWorker:
    """A worker whose bodies are given: by assignment id, what its `run` yields; an exception instance is raised
    instead.
    """

    def __init__(self, bodies: Mapping[str, Iterable[Any]] | None = None, controls: Iterable[Any] = ()) -> None:
        self._bodies, self._controls = dict(bodies or {}), list(controls)
        self.is_closed = False

    def describe(self) -> dict[str, Any]:
        return {"node": "here", "device": "cpu", "uuid": None, "backends": [], "environment": {}}

    def controls(self, backends: list[str]) -> Iterator[dict[str, Any]]:
        yield from self._told(self._controls)

    def run(self, assignment: dict[str, Any], target: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from self._told(self._bodies.get(assignment["id"], [passed(assignment)]))

    def progress(self) -> dict[str, Any]:
        return {"assignment": None, "step": 0}

    def close(self) -> None:
        self.is_closed = True

    def _told(self, bodies: Iterable[Any]) -> Iterator[dict[str, Any]]:
        for body in bodies:
            if isinstance(body, BaseException):
                raise body
            yield body


class ToldCrew:
    """A crew of shells in this process. A seat in `losses` is lost when it is launched for the nth time; one in
    `silent` never answers.
    """

    def __init__(
        self,
        shells: Mapping[str, Shell],
        *,
        losses: Mapping[str, tuple[int, Lost]] | None = None,
        silent: Iterable[str] = (),
    ) -> None:
        self._shells, self._losses, self._silent = dict(shells), dict(losses or {}), set(silent)
        self._working: dict[str, Iterator[list[Record]]] = {}
        self._launched: dict[str, int] = {}
        self.num_stacks_saved = 0

    def launch(self, seat: str, job: Job) -> None:
        assert seat not in self._working, "one job at a time"
        self._launched[seat] = self._launched.get(seat, 0) + 1
        shell = self._shells[seat]
        self._working[seat] = (
            shell.run(job.assignment, job.target or {}) if job.assignment else shell.controls(list(job.backends))
        )

    def poll(self, timeout_s: float) -> Iterable[Event]:
        for seat in list(self._working):
            at, lost = self._losses.get(seat, (0, None))
            if lost is not None and self._launched[seat] == at:
                del self._working[seat]
                yield lost
            elif seat not in self._silent:
                yield self._next(seat)

    def give_up(self, stuck: Mapping[str, str]) -> Iterable[Lost]:
        self.save_stacks()
        for seat in stuck:
            del self._working[seat]
        return [Lost(seat, "HANG", reason) for seat, reason in stuck.items()]

    def save_stacks(self) -> None:
        self.num_stacks_saved += 1

    def _next(self, seat: str) -> Event:
        try:
            return Batch(seat, next(self._working[seat]))
        except StopIteration:
            del self._working[seat]
            return Done(seat)


def planned(seat: str = "s0", *, cell: str = CELL, mode: str = "verify", **more: Any) -> dict[str, Any]:
    """A planned assignment."""
    about = {"scenario": "slot_reuse", "target": "staging", "backend": "sim", "mode": mode, "params": {"depth": 2}}
    about |= {"baseline": None, "ratio_min": {}, "shrink_s": 0.0, "ledger": False}
    return {"id": f"{cell}@{seat}", "seat": seat, "seed": 1, "timeout_s": 10.0, "limits": {}} | about | more


def passed(assignment: Mapping[str, Any], *, verdict: str = "PASS", **more: Any) -> dict[str, Any]:
    """The body of an assignment that passed, or ended otherwise."""
    keys = ("id", "scenario", "target", "seat", "backend", "mode", "params")
    body = {"type": "assignment", "verdict": verdict, "reason": "", "attempt": 1, "elapsed_s": 0.5, "checked_words": 10}
    return {key: assignment[key] for key in keys} | body | {"findings": [], "latency": {}, "coverage": {}} | more


def latency(op: str, *durations_ns: int) -> dict[str, Any]:
    """The latency of an assignment body."""
    histogram = Histogram()
    histogram.record_many(list(durations_ns))
    return {op: histogram.summary()}


class Tale:
    """The records of a run that went well, to be changed in one thing: `seats` seats, `plan` on them."""

    def __init__(self, plan: Iterable[dict[str, Any]] | None = None, *, controls: bool = True, **run: Any) -> None:
        self.plan = list(plan) if plan is not None else [planned()]
        self.seats = sorted({a["seat"] for a in self.plan})
        self._seq = itertools.count()
        self.records: list[Record] = []
        self._begin(controls, run)
        for seat in self.seats:
            self._ready(seat, controls)

    def ends(self, **more: Any) -> list[Record]:
        """All records, after a regular end."""
        self.add("end", "driver", {"end": "2026-01-01T00:00:09", "elapsed_s": 9.0} | more)
        return self.records

    def tell(self, assignment: Mapping[str, Any], *, incarnation: str = "inc", **more: Any) -> Tale:
        """Add an assignment's record."""
        about = {"assignment": assignment["id"], "incarnation": incarnation}
        self.add(assignment["id"], incarnation, {**passed(assignment, **more), **about})
        return self

    def find(self, assignment: Mapping[str, Any], kind: str) -> Tale:
        """Add a finding."""
        first = {"step": 4, "slot": 0, "tensor": "pool0", "row": 0, "offset": 0, "expected": "0x1", "got": "0x2"}
        about = {"assignment": assignment["id"], "seat": assignment["seat"], "incarnation": "inc"}
        body = {"type": "finding", "kind": kind, "summary": f"{kind} it is", "first": first, "overwriter": None}
        self.add(assignment["id"], "inc", body | about)
        return self

    def add(self, subject: str, incarnation: str, body: Record) -> Record:
        """Add any record."""
        record = {"type": subject, **body}
        record["id"] = record_id(RUN, subject, incarnation=incarnation, seq=next(self._seq))
        self.records.append(record)
        return record

    def control(self, seat: str, *, caught: bool | None = True, backend: str = "sim") -> Record:
        """Add a control's record."""
        body = {"type": "control", "name": "unfenced_reuse", "seat": seat, "backend": backend, "incarnation": "inc"}
        return self.add(
            f"controls:{seat}", "inc", body | {"expected_kind": "slot_reuse", "caught": caught, "detail": "seen"}
        )

    def _begin(self, controls: bool, run: Mapping[str, Any]) -> None:
        seats = [{"id": seat, "kind": "cpu"} for seat in self.seats]
        about = {"schema": 1, "run": RUN, "name": "test", "seed": 7, "start": "2026-01-01T00:00:00", "transport": "ray"}
        config = {"backends": ["sim"], "reports": ["console", "json"]}
        more = {"config": config, "config_file": "x.yaml", "overrides": [], "only": [], "command": [], "versions": {}}
        targets = {"staging": {"name": "staging", "kind": "builtin", "path": None, "sha256": None}}
        found = {"cpu_nodes": len(seats), "gpus": 0}
        body = about | more | {"seats": seats, "plan": self.plan, "controls": controls, "targets": targets}
        self.add("run", "driver", body | {"expect": {"cpu_nodes": 1, "gpus": 0}, "found": found} | run)

    def _ready(self, seat: str, controls: bool) -> None:
        body = {"seat": seat, "incarnation": "inc", "node": "here", "device": "cpu", "uuid": None, "backends": []}
        versions = {"ray": "2.60.0", "python": "3.11.7"}
        self.add("seat", "inc", body | {"environment": {}, "versions": versions})
        if controls:
            self.control(seat)
            self.add(f"controls:{seat}", "inc", {"type": "controls", "seat": seat, "num": 1, "incarnation": "inc"})


def made_report(
    *,
    name: str = "made",
    words: int = 1,
    counters: Mapping[str, int] | None = None,
    verdict: str = "PASS",
    findings: Iterable[Any] = (),
    controls: Iterable[Any] = ({"caught": True},),
    target: str = "staging",
    backend: str = "sim",
) -> dict[str, Any]:
    """As much of a report as the false-alarm budget looks at."""
    return {
        "run": {"name": name, "start": "2026-12-01T00:00:00.000+00:00", "elapsed_s": 1.0},
        "verdict": verdict,
        "findings": list(findings),
        "controls": list(controls),
        "seats": [{"environment": {"cpus": 2, "torch": "2.13.0"}}],
        "assignments": [{"target": target, "backend": backend}],
        "coverage": {"checked_words": words, "counters": dict(counters or {})},
    }
