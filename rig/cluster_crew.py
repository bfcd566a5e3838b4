"""One actor per seat as a crew: streams drained by `ray.wait` with a timeout, heartbeats beside them, and what became
of a lost one.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rig.cluster_actor import aftermath, gpu_memory, last_words
from rig.cluster_place import WAVE, Placed, gather
from rig.dispatch import Batch, Beat, Done, Event, Job, Lost
from rig.errors import Incomplete
from rig.records import Record
from rig.whereabouts import where

_BEAT_S = 2.0
_STACKS_S = 5.0
_WORDS_S = 15.0
_CLOSE_S = 10.0
_SWEEP_S = 1.0  # a stopped Ray job has three seconds in all
_EXIT_CODE = re.compile(r"exit code (\d+)")


class RayCrew:
    """The placed actors of a run. All methods are called from the driver's main thread."""

    def __init__(self, placed: Sequence[Placed], *, stacks: Path) -> None:
        self._placed = {p.seat.id: p for p in placed}
        self._stacks = stacks
        self._streams: dict[Any, str] = {}
        self._beats: dict[Any, str] = {}
        self._next_beats = 0.0
        self._gone: set[str] = set()
        self._jobs: dict[str, str] = {}
        self._at: dict[str, dict[str, Any]] = {}

    def prepare(
        self, *, run: str, seed: int, spools: str | None, ready_s: float, check: Callable[[], None]
    ) -> list[Record]:
        """Make every seat's worker, in waves; returns the seat records. `Incomplete` if one is not ready in time.

        `spools` is the folder for their spools where they share a machine with the driver, else None.
        """
        placed, records = list(self._placed.values()), []
        for first in range(0, len(placed), WAVE):
            refs = [
                p.actor.prepare.remote(run=run, seat=p.seat.id, kind=p.seat.kind, seed=seed, spools=spools)
                for p in placed[first : first + WAVE]
            ]
            try:
                records += gather(refs, within_s=ready_s, what="become ready", check=check)
            except RuntimeError as error:
                if placed[0].seat.kind != "gpu":
                    raise
                last = str(error).strip().splitlines()[-1]  # the device, its driver or its memory, rather than the rig
                raise Incomplete(f"a GPU seat could not become ready: {last}") from error
        places = [{"node_id": p.node_id, "address": p.seat.address} for p in placed]
        return [record | place for record, place in zip(records, places, strict=True)]

    def launch(self, seat: str, job: Job) -> None:
        """Start a job's stream.

        The next job comes when all records of this one were taken, and a job makes no more than some dozens: so what is
        on its way stays bounded, and a slow driver slows its seats.
        """
        self._jobs[seat] = job.subject
        self._at.pop(seat, None)
        self._streams[self._placed[seat].actor.work.remote(asdict(job))] = seat

    def poll(self, timeout_s: float) -> Iterable[Event]:
        """The batches, ends, heartbeats and losses since the last call."""
        self._ask_for_beats()
        refs = [*self._streams, *self._beats]
        if not refs:
            return
        ready, _ = ray.wait(refs, num_returns=1, timeout=timeout_s)
        if ready:
            ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
        for ref in ready:
            if ref in self._beats:
                yield from self._beat(ref)
            elif ref in self._streams:
                yield self._item(ref)

    def give_up(self, stuck: Mapping[str, str]) -> Iterable[Lost]:
        """Save the stacks of every seat, then kill these. A seat whose whole node is silent is not hung but
        unreachable.
        """
        stacks = self.save_stacks()
        reached = [seat for seat in stuck if stacks[seat] is not None]
        on_gpus = [seat for seat in reached if self._placed[seat].gpu]
        used = self._on_nodes(on_gpus, gpu_memory, lambda p: (p.gpu,), within_s=_WORDS_S)
        for seat in stuck:
            self._dismiss(seat)
        self._last_words(reached, is_alive=False, within_s=_STACKS_S)
        after = self._on_nodes(reached, aftermath, lambda p: (p.pid, p.gpu), within_s=_WORDS_S)
        ended = {seat: (after[seat] or {}) | {"gpu_used_mib_before": used.get(seat)} for seat in reached}
        return [self._stuck(seat, reason, ended=ended.get(seat)) for seat, reason in stuck.items()]

    def save_stacks(self) -> dict[str, str | None]:
        """Write each seat's stacks to a file under `stacks/`, and to where.txt what each is at.

        Returns the stacks, None where not even the node answered.
        """
        before = dict(self._at)
        asked = {p.actor.beat.remote(): id_ for id_, p in self._placed.items() if id_ in self._jobs}
        stacks = self._all_stacks()
        now = self._answers(asked, within_s=0)
        silent = [id_ for id_, said in now.items() if said is None]
        at = before | {id_: said for id_, said in now.items() if said is not None}
        self._stacks.mkdir(parents=True, exist_ok=True)
        for id_, text in stacks.items():
            said = text or ("its node does not answer\n" if text is None else "the process does not answer\n")
            (self._stacks / f"{id_}.txt").write_text(said, encoding="utf-8")
        text = where(stacks, at=at, jobs=self._jobs, silent=silent)
        (self._stacks / "where.txt").write_text(text, encoding="utf-8")
        return stacks

    def close(self, *, keep_spools: bool) -> None:
        """Let idle workers go in order, then kill every actor. The spools of those that are busy or lost stay."""
        busy = set(self._streams.values()) | self._gone
        refs = [p.actor.close.remote(keep_spool=keep_spools) for id_, p in self._placed.items() if id_ not in busy]
        with contextlib.suppress(RayError):
            if refs:
                ray.wait(refs, num_returns=len(refs), timeout=_CLOSE_S)
        for id_ in self._placed:
            if id_ not in self._gone:
                self._kill(id_)
        if busy - self._gone:
            self._last_words(sorted(busy - self._gone), is_alive=False, within_s=_SWEEP_S)

    def _item(self, stream: Any) -> Event:
        seat = self._streams[stream]
        try:
            return Batch(seat, ray.get(next(stream), timeout=_WORDS_S))
        except StopIteration:
            del self._streams[stream]
            self._jobs.pop(seat, None)
            return Done(seat)
        except RayTaskError as error:
            self._dismiss(seat)
            return Lost(seat, "ERROR", str(error))
        except RayError as error:
            return self._lost(seat, error)

    def _beat(self, ref: Any) -> Iterable[Event]:
        seat = self._beats.pop(ref)
        try:
            self._at[seat] = ray.get(ref, timeout=_STACKS_S)
            return [Beat(seat, self._at[seat])]
        except (RayError, GetTimeoutError):
            return []  # the stream tells, or the missing beat does

    def _ask_for_beats(self) -> None:
        now = time.monotonic()
        if now < self._next_beats:
            return
        self._next_beats = now + _BEAT_S
        waiting = set(self._beats.values())
        for seat in self._streams.values():
            if seat not in waiting:
                self._beats[self._placed[seat].actor.beat.remote()] = seat

    def _lost(self, seat: str, error: RayError) -> Lost:
        """Why an actor is gone: its own doing, if it left a fault trace or an exit code."""
        text = " ".join(str(error).split())
        place = self._placed[seat]
        words = self._last_words([seat], is_alive=False, within_s=_WORDS_S)[seat]
        self._dismiss(seat)
        where = f"process {place.pid} on {place.seat.address}"
        if words:
            return Lost(seat, "FAIL", f"{where} crashed: {words}")
        code = _EXIT_CODE.search(text)
        if code:
            return Lost(seat, "FAIL", f"{where} ended with exit code {code[1]}")
        return Lost(seat, "INCOMPLETE", f"{where} is gone: {text.rpartition('Worker exit detail: ')[2][:400]}")

    def _stuck(self, seat: str, reason: str, *, ended: dict[str, Any] | None) -> Lost:
        if ended is not None:
            return Lost(seat, "HANG", f"{reason}; stacks in {self._stacks.name}/", ended)
        return Lost(
            seat, "INCOMPLETE", f"{reason}, and its node {self._placed[seat].seat.address} does not answer either"
        )

    def _dismiss(self, seat: str) -> None:
        self._streams = {stream: id_ for stream, id_ in self._streams.items() if id_ != seat}
        self._beats = {ref: id_ for ref, id_ in self._beats.items() if id_ != seat}
        self._jobs.pop(seat, None)
        self._kill(seat)
        self._gone.add(seat)

    def _kill(self, seat: str) -> None:
        with contextlib.suppress(RayError, ValueError):
            ray.kill(self._placed[seat].actor)

    def _all_stacks(self) -> dict[str, str | None]:
        """Each seat's stacks: from its control channel, else by a signal from its node."""
        asked = {p.actor.stacks.remote(): id_ for id_, p in self._placed.items() if id_ not in self._gone}
        told = self._answers(asked, within_s=_STACKS_S)
        silent = [id_ for id_, text in told.items() if text is None]
        return told | self._last_words(silent, is_alive=True, within_s=_WORDS_S)

    def _last_words(self, seats: Sequence[str], *, is_alive: bool, within_s: float) -> dict[str, str | None]:
        """What the seats' processes left or say, read on their nodes; None where the node does not answer."""
        return self._on_nodes(seats, last_words, lambda place: (place.pid,), within_s=within_s, is_alive=is_alive)

    def _on_nodes(
        self,
        seats: Sequence[str],
        task: Any,
        about: Callable[[Placed], tuple[Any, ...]],
        *,
        within_s: float,
        **more: Any,
    ) -> dict[str, Any]:
        """By seat, what a task on its node says; None where the node does not answer."""
        asked = {}
        for seat in seats:
            there = NodeAffinitySchedulingStrategy(self._placed[seat].node_id, soft=False)
            asked[task.options(scheduling_strategy=there).remote(*about(self._placed[seat]), **more)] = seat
        return self._answers(asked, within_s=within_s)

    @staticmethod
    def _answers(asked: Mapping[Any, str], *, within_s: float) -> dict[str, Any]:
        """By seat, the answers that came in time."""
        answers: dict[str, Any] = dict.fromkeys(asked.values())
        ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=within_s) if asked else ([], [])
        for ref in ready:
            with contextlib.suppress(RayError):
                answers[asked[ref]] = ray.get(ref)
        return answers
