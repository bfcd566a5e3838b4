"""Hands each seat its jobs one by one and turns everything that can happen to a seat into records.

The loop knows nothing of Ray: a crew (of Ray actors, of this process, or a test's double) launches jobs
and reports events. Whatever happens, each planned assignment ends in exactly one record of this loop or of its worker.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from rig.lattice import ORDER
from rig.records import Record, record_id
from rig.retries import Retries
from rig.shell import ended

HEARTBEAT_S = 30.0
GRACE_S = 5.0  # a worker that notices its own deadline gets this long to say so
_TICK_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a seat does next: all controls, or one assignment."""

    subject: str
    timeout_s: float
    backends: tuple[str, ...] = ()
    assignment: dict[str, Any] | None = None
    target: dict[str, Any] | None = None


class Batch(NamedTuple):
    """Records of a seat, in order."""

    seat: str
    records: list[Record]


class Done(NamedTuple):
    """A seat finished its job."""

    seat: str


class Beat(NamedTuple):
    """A sign of life, with what the seat is at."""

    seat: str
    progress: dict[str, Any]


class Lost(NamedTuple):
    """A seat that is gone. FAIL if it left a fault trace or an exit code, INCOMPLETE if nobody knows why, HANG if it is
    stuck. `ended` is what became of a process that the rig ended.
    """

    seat: str
    verdict: str
    reason: str
    ended: dict[str, Any] | None = None


Event = Batch | Done | Beat | Lost


class Crew(Protocol):
    """The seats of a run, ready to work."""

    def launch(self, seat: str, job: Job) -> None:
        """Start a job on an idle seat."""

    def poll(self, timeout_s: float) -> Iterable[Event]:
        """What happened since; waits at most about `timeout_s` for the first event."""

    def give_up(self, stuck: Mapping[str, str]) -> Iterable[Lost]:
        """Save the stacks of every seat, then end these, which for some reason are past their deadline or silent."""

    def save_stacks(self) -> object:
        """Save the stacks of every seat, for a worker that noticed a hang by itself and goes on."""


@dataclass(slots=True)
class _Lane:
    jobs: deque[Job]
    job: Job | None = None
    started: float = 0.0
    last_beat: float = 0.0
    is_lost: bool = False
    told: set[str] = field(default_factory=set)
    found: set[str] = field(default_factory=set)  # of these a finding came


class Dispatch:
    """One run's loop. `emit` takes records; `stop` says why to stop early, or None; only `work` calls them."""

    def __init__(
        self,
        crew: Crew,
        jobs: Mapping[str, Sequence[Job]],
        *,
        run: str,
        emit: Callable[[Iterable[Record]], None],
        stop: Callable[[], str | None],
        on_beat: Callable[[str, str], None] = lambda seat, at: None,
        fail_fast: bool = False,
        retries: Retries | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._crew, self._run, self._emit, self._stop, self._on_beat = crew, run, emit, stop, on_beat
        self._lanes = {seat: _Lane(deque(queue)) for seat, queue in jobs.items()}
        self._fail_fast, self._clock = fail_fast, clock
        self._retries = retries or Retries(dict.fromkeys(jobs, ""), infra=0)
        self._seq = 0
        self._failed = ""

    def work(self) -> None:
        """Until every job ended, or `stop` gave a reason; then what is left becomes INCOMPLETE records."""
        reason = None
        while (reason := self._stop_reason()) is None and self._launch():
            for event in self._crew.poll(_TICK_S):
                self.take(event)
            self._find_stuck()
        for seat in self._lanes:
            self._abandon(seat, reason or "not run")

    def _launch(self) -> bool:
        """Give every idle seat its next job; False when there is nothing left to wait for."""
        for seat, lane in self._lanes.items():
            if lane.job is None and not lane.is_lost:
                lane.job = lane.jobs.popleft() if lane.jobs else self._retries.take(seat)
                if lane.job is None:
                    continue
                lane.started = lane.last_beat = self._clock()
                self._crew.launch(seat, lane.job)
                self._on_beat(seat, lane.job.subject)
        return any(lane.job for lane in self._lanes.values())

    def take(self, event: Event) -> None:
        """Note what happened to a seat; a crew whose `poll` does not return says so here."""
        lane = self._lanes[event.seat]
        if lane.is_lost:
            return
        lane.last_beat = self._clock()
        if isinstance(event, Batch):
            self._note(lane, event.records)
            self._emit(event.records)
        elif isinstance(event, Done):
            lane.job = None
        elif isinstance(event, Beat):
            at = lane.job.subject if lane.job else ""
            self._on_beat(event.seat, f"{at} step {event.progress.get('step', 0)}")
        else:
            self._lose(event)

    def _note(self, lane: _Lane, records: Iterable[Record]) -> None:
        for record in records:
            if record["type"] == "finding":
                lane.found.add(record["assignment"])
            elif record["type"] == "assignment":
                lane.told.add(record["assignment"])
                if record["verdict"] == "HANG":
                    self._crew.save_stacks()
                if self._fail_fast and ORDER.index(record["verdict"]) >= ORDER.index("FAIL"):
                    self._failed = self._failed or record["assignment"]

    def _find_stuck(self) -> None:
        now, stuck = self._clock(), {}
        for seat, lane in self._lanes.items():
            if lane.job is None:
                continue
            if now - lane.started > lane.job.timeout_s + GRACE_S:
                stuck[seat] = f"no end within timeout_s = {lane.job.timeout_s:g}"
            elif now - lane.last_beat > HEARTBEAT_S:
                stuck[seat] = f"no sign of life for {HEARTBEAT_S:g} s"
        for lost in self._crew.give_up(stuck) if stuck else ():
            self._lose(lost)

    def _lose(self, lost: Lost) -> None:
        """The job at hand ends as the loss says, everything behind it is INCOMPLETE.

        If infrastructure took the seat, all of it that has neither a record nor a finding may be run again elsewhere.
        """
        lane = self._lanes[lost.seat]
        lane.is_lost = True
        job, lane.job = lane.job, None
        if lost.verdict == "INCOMPLETE":
            is_open = job is not None and job.subject not in lane.told | lane.found
            self._retries.put(lost.seat, behind=lane.jobs, at_hand=job if is_open else None)
        during = job.subject if job else "no job"
        planted = lost.verdict == "FAIL" and not (job and job.assignment)  # a control is wrong on purpose
        verdict = "INCOMPLETE" if planted else lost.verdict
        body: Record = {"type": "lost", "verdict": verdict, "during": during, "reason": lost.reason}
        body |= {"seat": lost.seat} | ({"ended": lost.ended} if lost.ended else {})
        self._emit([self._record(f"lost:{lost.seat}", body)])
        if job and job.assignment and job.subject not in lane.told:
            elapsed_s = round(self._clock() - lane.started, 3)
            self._end(job.assignment, lost, elapsed_s)
        self._abandon(lost.seat, f"seat {lost.seat} was lost during {during}: {_first_line(lost.reason)}")

    def _abandon(self, seat: str, reason: str) -> None:
        """What a seat will not run becomes INCOMPLETE, all of it in one batch."""
        lane = self._lanes[seat]
        left = [*([lane.job] if lane.job else []), *lane.jobs]
        lane.job = None
        lane.jobs.clear()
        untold = [job.assignment for job in left if job.assignment and job.subject not in lane.told]
        if untold:
            self._emit([self._of(a, ended(a, "INCOMPLETE", reason=reason)) for a in untold])

    def _end(self, assignment: dict[str, Any], lost: Lost, elapsed_s: float) -> None:
        """The record of the assignment that a lost seat was at, and a finding if that was the target's doing."""
        body = ended(assignment, lost.verdict, reason=lost.reason, elapsed_s=elapsed_s)
        kind = {"FAIL": "exception", "HANG": "hang"}.get(lost.verdict)
        finding = {"type": "finding", "kind": kind, "summary": _first_line(lost.reason)}
        finding |= {"assignment": assignment["id"], "seat": assignment["seat"], "first": None, "overwriter": None}
        bodies = [finding, body | {"findings": [kind]}] if kind else [body]
        self._emit([self._of(assignment, b) for b in bodies])

    def _of(self, assignment: dict[str, Any], body: Record) -> Record:
        return self._record(assignment["id"], body, attempt=assignment.get("attempt", 1))

    def _record(self, subject: str, body: Record, *, attempt: int = 1) -> Record:
        self._seq += 1
        return {**body, "id": record_id(self._run, subject, attempt=attempt, seq=self._seq)}

    def _stop_reason(self) -> str | None:
        return self._stop() or (f"not run: --fail-fast after {self._failed}" if self._failed else None)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
