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


DTYPES = [torch.int32, torch.int64, torch.int32]
NUMPY = {torch.int32: np.int32, torch.int64: np.int64}
tensors = st.integers(0, len(DTYPES) - 1)
places = st.lists(st.tuples(st.integers(0, ROWS - 1), st.integers(0, COLUMNS - 1)), min_size=1, max_size=6)
now = st.booleans()


class Machine(RuleBasedStateMachine):
    """Stage, apply, publish, read late, end steps, fail; compare whatever was read with what was due."""

    backend = "cpu"

    @initialize(depth=st.integers(1, 3), uva=st.booleans(), step_mode=st.booleans())
    def build(self, depth, uva, step_mode):
        self.world, self.step_mode = World(self.backend), step_mode
        manager = self.world.manager
        shapes = [((ROWS, COLUMNS), dtype, uva and dtype == torch.int32) for dtype in DTYPES]
        self.tensors = [StagedWriteTensor(s, d, self.world.device, depth, u, manager=manager) for s, d, u in shapes]
        self.models = [np.zeros((ROWS, COLUMNS), np.int64) for _ in shapes]
        self.staged = [[] for _ in shapes]
        self.writer = FusedStagedWriter(self.world.device, 4, depth, manager=manager)
        self.pool = UvaBufferPool(2, torch.int32, depth, manager=manager)
        self.backed = UvaBackedTensor(ROWS, torch.int32, depth, manager=manager)
        self.reads = []

    @rule(which=tensors, row=indices, start=starts, values=contents, array=st.booleans())
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

    @rule(which=tensors, row=st.integers(0, ROWS - 1), value=st.integers(-3, 3) | st.just(2**30))
    def stage_element(self, which, row, value):
        self.tensors[which].stage_write_elem(row, value)
        self.staged[which].append((row, 0, [value]))

    @rule(
        which=tensors, places=places, value=st.integers(0, 99), start=st.none() | st.integers(0, COLUMNS - 1), now=now
    )
    def batch(self, which, places, value, start, now):
        rows, columns = (np.array(part) for part in zip(*places, strict=True))
        values = np.arange(value, value + len(rows)).astype(NUMPY[DTYPES[which]])
        call = self.tensors[which].apply_writes if now else self.tensors[which].stage_writes
        call(rows, columns if start is None else start, values)
        for (row, column), number in zip(places, values.tolist(), strict=True):
            self.staged[which].append((row, column if start is None else start, [number]))
        if now:
            self._applied(which)

    @rule(places=places, value=st.integers(0, 99), now=now, alike=st.booleans())
    def fused_batch(self, places, value, now, alike):
        chosen = [0, 2] if alike else [2, 1, 0]  # of one dtype, or of several
        rows, columns = (np.array(part) for part in zip(*places, strict=True))
        ids, values = (rows + columns) % len(chosen), np.arange(value, value + len(rows), dtype=np.int32)
        call = self.writer.apply_writes if now else self.writer.stage
        call([self.tensors[which] for which in chosen], ids, rows, columns, values)
        for which, (row, column), number in zip(ids.tolist(), places, values.tolist(), strict=True):
            self.staged[chosen[which]].append((row, column, [number]))
        for which in chosen if now else ():
            self._applied(which)

    @rule(which=tensors)
    def apply(self, which):
        self.tensors[which].apply_write()
        self._applied(which)

    @rule()
    def apply_fused(self):
        self.writer.apply(self.tensors)
        for which in range(len(self.tensors)):
            self._applied(which)

    @rule(which=tensors)
    def clear(self, which):
        self.tensors[which].clear_staged_writes()
        self.staged[which].clear()

    @rule(which=tensors)
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
