"""A state machine: the library and a plain numpy model in lock step, over every backend."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import BACKENDS, World
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from staging import FusedStagedWriter, StagedWriteTensor, UvaBackedTensor, UvaBufferPool

ROWS, COLUMNS = 4, 9
indices = st.integers(-1, ROWS)
starts = st.integers(-1, COLUMNS)
contents = st.lists(st.integers(-3, 3) | st.just(2**31), max_size=COLUMNS + 1)


class Machine(RuleBasedStateMachine):
    """Stage, apply, publish, read late, end steps, fail; compare whatever was read with what was due."""

    backend = "cpu"

    @initialize(depth=st.integers(1, 3), uva=st.booleans(), step_mode=st.booleans())
    def build(self, depth, uva, step_mode):
        self.world, self.step_mode = World(self.backend), step_mode
        manager = self.world.manager
        shapes = [((ROWS, COLUMNS), torch.int32, uva), ((ROWS, COLUMNS), torch.int64, False)]
        self.tensors = [StagedWriteTensor(s, d, self.world.device, depth, u, manager=manager) for s, d, u in shapes]
        self.models = [np.zeros((ROWS, COLUMNS), np.int64) for _ in shapes]
        self.staged = [[], []]
        self.writer = FusedStagedWriter(self.world.device, 4, depth, manager=manager)
        self.pool = UvaBufferPool(2, torch.int32, depth, manager=manager)
        self.backed = UvaBackedTensor(ROWS, torch.int32, depth, manager=manager)
        self.reads = []

    @rule(which=st.integers(0, 1), row=indices, start=starts, values=contents, array=st.booleans())
    def stage(self, which, row, start, values, array):
        inside = not values or (0 <= row < ROWS and start >= 0 and start + len(values) <= COLUMNS)
        fits = which == 1 or 2**31 not in values
        try:
            self.tensors[which].stage_write(row, start, np.array(values, np.int64) if array else values)
        except (IndexError, OverflowError):
            assert not (inside and fits)
        else:
            assert inside
            assert fits
            self.staged[which] += [(row, start, values)] if values else []  # empty ones are ignored

    @rule(
        which=st.integers(0, 1),
        rows=st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=5),
        value=st.integers(0, 99),
    )
    def stage_batch(self, which, rows, value):
        values = np.arange(value, value + len(rows))
        self.tensors[which].stage_writes(rows, 1, values)
        self.staged[which] += [(row, 1, [int(v)]) for row, v in zip(rows, values, strict=True)]

    @rule(which=st.integers(0, 1))
    def apply(self, which):
        self.tensors[which].apply_write()
        self._applied(which)

    @rule()
    def apply_fused(self):
        self.writer.apply(self.tensors)
        self._applied(0)
        self._applied(1)

    @rule(which=st.integers(0, 1))
    def clear(self, which):
        self.tensors[which].clear_staged_writes()
        self.staged[which].clear()

    @rule(which=st.integers(0, 1))
    def read_tensor(self, which):
        self.reads.append((self.world.read(self.tensors[which].gpu), self.models[which].copy()))

    @rule(values=st.lists(st.integers(-9, 9), min_size=1, max_size=9), times=st.integers(1, 3))
    def publish(self, values, times):
        for _ in range(times):
            self.reads.append((self.world.read(self.pool.copy_to_uva(values)), np.array(values)))

    @rule(row=st.integers(0, ROWS - 1), value=st.integers(-9, 9), n=st.integers(0, ROWS))
    def publish_backed(self, row, value, n):
        self.backed.np[row] = value
        self.reads.append((self.world.read(self.backed.copy_to_uva(n)), self.backed.np[:n].copy()))

    @rule()
    def end_step(self):
        if self.step_mode:
            self.world.manager.end_step()

    @rule()
    def settle(self):
        for read, due in self.reads:
            assert (read() == due).all()
        self.reads.clear()

    @invariant()
    def slots_stay_few(self):
        if hasattr(self, "pool") and not self.step_mode:
            assert self.pool.num_slots <= self.pool.max_concurrency + 1

    def teardown(self):
        if hasattr(self, "world"):
            self.settle()
            self.world.settle()
            self.world.manager.close()

    def _applied(self, which):
        for row, start, values in self.staged[which]:
            self.models[which][row, start : start + len(values)] = values
        self.staged[which].clear()


@pytest.mark.parametrize("backend", BACKENDS)
def test_library_and_model_agree(backend):
    machine = type("Machine", (Machine,), {"backend": backend})
    examples = 60 if backend in ("cpu", "sim") else 25
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
