"""Requests of a serving engine: drawn from a seed, or read from a trace, and what each step does about them."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
BLOCK_TOKENS = 16
_VOCABULARY = 150_000


class Request(NamedTuple):
    """One request: the step in which it arrives, its prompt and what it will generate, in tokens."""

    step: int
    num_prompt: int
    num_output: int


class Batch(NamedTuple):
    """One block id for each of many rows of many tables, as running requests need them."""

    groups: Ints
    rows: Ints
    starts: Ints
    values: NDArray[np.int32]


Append = tuple[int, int, int, list[int]]
"""Group, row, start, block ids."""


@dataclass(slots=True)
class StepPlan:
    """What one step of the engine changes, as the calls take it; the same for every target."""

    active: Ints  # rows that generate a token
    new_rows: list[int] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)
    appends: list[Append] = field(default_factory=list)
    singles: Batch | None = None  # those of one block, as arrays
    several: list[Append] = field(default_factory=list)  # the others


def synthetic(params: Mapping[str, Any], rng: np.random.Generator) -> Iterator[Request]:
    """Endless: Poisson arrivals, log-normal lengths; `start_requests` of them are there at the first step."""
    for step in itertools.count():
        num = rng.poisson(params["arrivals_per_step"]) + (params["start_requests"] if step == 0 else 0)
        for _ in range(num):
            yield Request(step, _lognormal(rng, params["prompt_median"]), _lognormal(rng, params["output_median"]))


def in_steps(trace: Iterable[tuple[float, int, int]], *, step_ms: float) -> Iterator[Request]:
    """Endless: a trace of (seconds, prompt, output), one step for each `step_ms` of it, again and again."""
    rows, first = list(trace), 0
    while True:
        steps = [int((arrival_s - rows[0][0]) * 1000 / step_ms) for arrival_s, _, _ in rows]
        for step, (_, num_prompt, num_output) in zip(steps, rows, strict=True):
            yield Request(first + step, num_prompt, num_output)
        first += max(steps) + 1


def plans(requests: Iterator[Request], params: Mapping[str, Any], rng: np.random.Generator) -> Iterator[StepPlan]:
    """The engine's bookkeeping, endless: finish, admit while there are free rows, generate, give out blocks."""
    scheduler = _Scheduler(params, rng)
    ahead = next(requests)
    for number in itertools.count():
        while ahead.step <= number:
            scheduler.waiting.append(ahead)
            ahead = next(requests)
        plan = scheduler.step()
        if len(plan.active) or plan.new_rows:  # an engine without requests takes no step
            yield plan


@dataclass(slots=True)
class _Running:
    num_tokens: int
    num_left: int
    num_blocks: int


class _Scheduler:
    def __init__(self, params: Mapping[str, Any], rng: np.random.Generator) -> None:
        self._rng, self._num_groups = rng, int(params["num_groups"])
        self._num_tokens_max = int(params["max_model_len"])
        self._free = list(range(params["max_requests"]))
        self._running: dict[int, _Running] = {}
        self._next_block = 0
        self.waiting: deque[Request] = deque()

    def step(self) -> StepPlan:
        for row in [row for row, one in self._running.items() if one.num_left == 0]:
            del self._running[row]
            heapq.heappush(self._free, row)
        plan = StepPlan(active=np.array(sorted(self._running), np.int64))
        needs = [(row, self._generate(one)) for row, one in sorted(self._running.items())]
        while self.waiting and self._free:
            needs.append(self._admit(self.waiting.popleft(), plan))
        for group in range(self._num_groups):
            for row, num in needs:
                if num:
                    plan.appends.append((group, row, self._running[row].num_blocks - num, self._blocks(num)))
        plan.singles = _arrays([append for append in plan.appends if len(append[3]) == 1])
        plan.several = [append for append in plan.appends if len(append[3]) > 1]
        return plan

    def _generate(self, one: _Running) -> int:
        """One more token; returns how many blocks it needs."""
        one.num_tokens, one.num_left = one.num_tokens + 1, one.num_left - 1
        num = -(-one.num_tokens // BLOCK_TOKENS) - one.num_blocks
        one.num_blocks += num
        return num

    def _admit(self, request: Request, plan: StepPlan) -> tuple[int, int]:
        """A free row for the request; its whole prompt is written at once. Returns row and blocks."""
        num_prompt = max(1, min(request.num_prompt, self._num_tokens_max - 1))
        num_output = max(1, min(request.num_output, self._num_tokens_max - num_prompt))
        row, num_blocks = heapq.heappop(self._free), -(-num_prompt // BLOCK_TOKENS)
        self._running[row] = _Running(num_prompt, num_output, num_blocks)
        plan.new_rows.append(row)
        plan.prompts.append(self._rng.integers(_VOCABULARY, size=num_prompt).tolist())
        return row, num_blocks

    def _blocks(self, num: int) -> list[int]:
        first, self._next_block = self._next_block, (self._next_block + num) % (1 << 30)
        return list(range(first, first + num))


def _arrays(appends: list[Append]) -> Batch | None:
    if not appends:
        return None
    groups, rows, starts = (np.array([append[i] for append in appends], np.int64) for i in range(3))
    return Batch(groups, rows, starts, np.array([append[3][0] for append in appends], np.int32))


def _lognormal(rng: np.random.Generator, median: int) -> int:
    return max(1, int(rng.lognormal(np.log(median), 1.0)))
