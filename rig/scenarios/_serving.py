"""An engine's step, with the calls that upstream's model runner makes, and with those it would make of our library."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from rig.scenarios._requests import BLOCK_TOKENS, StepPlan

if TYPE_CHECKING:
    from rig.client import Client

SAMPLING = {
    **{"temperature": "float32", "top_k": "int32", "top_p": "float32", "min_p": "float32", "seeds": "int64"},
    **{"repetition": "float32", "frequency": "float32", "presence": "float32"},
}
COUNTERS = ("num_tokens", "positions", "query_start", "seq_lens", "num_blocks", "draft_len", "slot_mapping", "last_id")
_GATHERED_ROWS = 32  # of the block table, by the reader that stands for attention


class Engine:
    """One target in the decode loop, by upstream's names alone."""

    def __init__(self, client: Client, params: Mapping[str, Any]) -> None:
        rows, length = params["max_requests"], params["max_model_len"]
        make = partial(client.make, depth=params["max_concurrency"])
        backed = SAMPLING | dict.fromkeys(COUNTERS, "int32")
        tracked = {name: make(name, "backed", rows, dtype=dtype) for name, dtype in backed.items()}
        self._sampling = [tracked[name].np for name in SAMPLING]
        self._counters = [tracked[name].np for name in COUNTERS]
        self.client, self._gpu_ms = client, params["gpu_ms"]
        self.tokens = make("token_ids", "staged", (rows, length), uva=True)
        self.total_len, self.num_computed = (make(name, "staged", rows) for name in ("total_len", "num_computed"))
        names = [f"block_table{group}" for group in range(params["num_groups"])]
        self.tables = [make(name, "staged", (rows, -(-length // BLOCK_TOKENS))) for name in names]
        self.writer = make("writer", "fused", max_writes=max(1, len(names) * rows))
        self._read_rows = min(rows, _GATHERED_ROWS)
        self.staged = ["token_ids", "total_len", "num_computed", *names]
        self.published = list(backed)
        self._publish, self._end = client.publisher(self.published), client.step_end()
        self._apply = self._applier(names)

    def step(self, plan: StepPlan) -> None:
        """Everything that the host does in one step; the GPU's part is queued."""
        self._write_host(plan)
        if plan.new_rows:
            self._add(plan)
        if plan.appends:
            self._append(plan)
        self._publish()
        self._forward(with_prompts=bool(plan.new_rows))
        self._end()

    def _applier(self, tables: Sequence[str]) -> Callable[[], Any]:
        """Upstream's choice: fused where there is more than one group."""
        if len(tables) > 1:
            return self.client.applier("writer", tables)
        apply: Callable[[], Any] = self.tables[0].apply_write
        return apply

    def _write_host(self, plan: StepPlan) -> None:
        """What changes in the host arrays: counters of running requests, parameters of new ones."""
        for host in self._counters[:4]:
            host[plan.active] += 1
        if plan.new_rows:
            lengths = [len(prompt) for prompt in plan.prompts]
            for index, host in enumerate(self._sampling):
                host[plan.new_rows] = index
            for host in self._counters:
                host[plan.new_rows] = lengths

    def _add(self, plan: StepPlan) -> None:
        for row, prompt in zip(plan.new_rows, plan.prompts, strict=True):
            self.tokens.stage_write(row, 0, prompt)
            self.total_len.stage_write_elem(row, len(prompt))
            self.num_computed.stage_write_elem(row, 0)
        for tensor in (self.tokens, self.total_len, self.num_computed):
            tensor.apply_write()

    def _append(self, plan: StepPlan) -> None:
        for group, row, start, blocks in plan.appends:
            self.tables[group].stage_write(row, start, blocks)
        self._apply()

    def _forward(self, *, with_prompts: bool) -> None:
        """The GPU's part: attention's metadata is read before the work, the sampler's after it."""
        if with_prompts:
            self.client.read("token_ids", num_rows=1)
        self.client.read("block_table0", num_rows=self._read_rows)
        self.client.read("num_tokens")
        self.client.work(self._gpu_ms)
        self.client.read("temperature")
        self.client.read("total_len")


class BatchEngine(Engine):
    """The same by our library's calls: one publish; one launch for all that is new; one batch for all that goes on."""

    def _applier(self, tables: Sequence[str]) -> Callable[[], Any]:
        return self.client.applier("writer", ["token_ids", *tables])

    def _add(self, plan: StepPlan) -> None:
        for row, prompt in zip(plan.new_rows, plan.prompts, strict=True):
            self.tokens.stage_write(row, 0, prompt)
        rows = np.array(plan.new_rows)
        self.total_len.apply_writes(rows, 0, np.array([len(prompt) for prompt in plan.prompts], np.int32))
        self.num_computed.apply_writes(rows, 0, np.zeros(len(rows), np.int32))

    def _append(self, plan: StepPlan) -> None:
        for group, row, start, blocks in plan.several:
            self.tables[group].stage_write(row, start, blocks)
        if plan.new_rows or plan.several:
            self._apply()
        if plan.singles is not None:
            self.writer.apply_writes(self.tables, *plan.singles)


def engine(client: Client, params: Mapping[str, Any]) -> Engine:
    """The engine that gets the most out of the client's target."""
    return BatchEngine(client, params) if client.own else Engine(client, params)


class Loop:
    """One side: the engine's loop, ahead of the device by `max_concurrency` steps, over a shared list of plans."""

    def __init__(
        self,
        client: Client,
        params: Mapping[str, Any],
        plans: Sequence[StepPlan],
        *,
        clock_ns: Any = time.perf_counter_ns,
    ) -> None:
        self.engine, self._client, self._clock_ns = engine(client, params), client, clock_ns
        self._plans: Iterator[StepPlan] = iter(plans)
        self._num_warm_up, self._num_steps = params["warm_up_steps"], params["num_steps"]
        self._depth: int = params["max_concurrency"]

    def warm_up(self) -> None:
        self._run(self._num_warm_up)

    def round(self) -> Mapping[str, Sequence[int]]:
        """The host's time for each step, and the wall time per step of the whole round, the device's end included."""
        begin = self._clock_ns()
        host = self._run(self._num_steps)
        return {"host_step": host, "steps": [(self._clock_ns() - begin) // self._num_steps]}

    def _run(self, num_steps: int) -> list[int]:
        marks: deque[Callable[[], Any]] = deque()
        samples, step, clock_ns, mark = [], self.engine.step, self._clock_ns, self._client.mark
        for plan in islice(self._plans, num_steps):
            if len(marks) == self._depth:
                marks.popleft()()  # the only wait: the step whose slots are due again
            begin = clock_ns()
            step(plan)
            samples.append(clock_ns() - begin)
            marks.append(mark())
        self._client.sync()
        return samples
