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

from rig.cluster_actor import last_words
from rig.cluster_place import WAVE, Placed, gather
from rig.dispatch import Batch, Beat, Done, Event, Job, Lost
from rig.errors import Incomplete
from rig.records import Record

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

    def prepare(self, *, run: str, seed: int, ready_s: float, check: Callable[[], None]) -> list[Record]:
        """Make every seat's worker, in waves; returns the seat records. `Incomplete` if one is not ready in time."""
        placed, records = list(self._placed.values()), []
        for first in range(0, len(placed), WAVE):
            refs = [
                p.actor.prepare.remote(run=run, seat=p.seat.id, kind=p.seat.kind, seed=seed)
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
        """Start a job's stream."""
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
        for seat in stuck:
            self._dismiss(seat)
        self._last_words([seat for seat in stuck if stacks[seat] is not None], is_alive=False, within_s=_STACKS_S)
        return [self._stuck(seat, reason, reached=stacks[seat] is not None) for seat, reason in stuck.items()]

    def save_stacks(self) -> dict[str, str | None]:
        """Write each seat's stacks to a file under `stacks/`; returns them, None where not even the node answered."""
        stacks = self._all_stacks()
        self._stacks.mkdir(parents=True, exist_ok=True)
        for id_, text in stacks.items():
            said = text or ("its node does not answer\n" if text is None else "the process does not answer\n")
            (self._stacks / f"{id_}.txt").write_text(said, encoding="utf-8")
        return stacks

    def close(self) -> None:
        """Let idle workers go in order, then kill every actor."""
        busy = set(self._streams.values()) | self._gone
        refs = [p.actor.close.remote() for id_, p in self._placed.items() if id_ not in busy]
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
            return Done(seat)
        except RayTaskError as error:
            self._dismiss(seat)
            return Lost(seat, "ERROR", str(error))
        except RayError as error:
            return self._lost(seat, error)

    def _beat(self, ref: Any) -> Iterable[Event]:
        seat = self._beats.pop(ref)
        try:
            return [Beat(seat, ray.get(ref, timeout=_STACKS_S))]
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

    def _stuck(self, seat: str, reason: str, *, reached: bool) -> Lost:
        if reached:
            return Lost(seat, "HANG", f"{reason}; stacks in {self._stacks.name}/")
        return Lost(
            seat, "INCOMPLETE", f"{reason}, and its node {self._placed[seat].seat.address} does not answer either"
        )

    def _dismiss(self, seat: str) -> None:
        self._streams = {stream: id_ for stream, id_ in self._streams.items() if id_ != seat}
        self._beats = {ref: id_ for ref, id_ in self._beats.items() if id_ != seat}
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
        asked = {}
        for seat in seats:
            place = self._placed[seat]
            there = NodeAffinitySchedulingStrategy(place.node_id, soft=False)
            asked[last_words.options(scheduling_strategy=there).remote(place.pid, is_alive=is_alive)] = seat
        return self._answers(asked, within_s=within_s)

    @staticmethod
    def _answers(asked: Mapping[Any, str], *, within_s: float) -> dict[str, str | None]:
        """By seat, the answers that came in time."""
        answers: dict[str, str | None] = dict.fromkeys(asked.values())
        ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=within_s) if asked else ([], [])
        for ref in ready:
            with contextlib.suppress(RayError):
                answers[asked[ref]] = ray.get(ref)
        return answers
