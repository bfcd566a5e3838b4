"""One of each object in a known state, for tests of calls that must change nothing."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import Any

import numpy as np
import torch
from conftest import World

import staging

DEPTH = 3
LIMIT_BYTES = 1 << 20


class Bench:
    """Tensors with one write staged, pools and buffers with one publish, backed tensors, a fused writer.

    `state` is what a bad call must leave as it was; `check_that_all_works` makes the next good call on each.
    """

    def __init__(self, backend: str) -> None:
        self.world = World(backend, limit_bytes=LIMIT_BYTES, depth=DEPTH)
        self.manager, self.device = self.world.manager, self.world.device
        self._open = ExitStack()  # steps that a call left open
        self._others: list[World] = []
        self.views: dict[str, torch.Tensor] = {}
        self.tensors: dict[torch.dtype, staging.StagedWriteTensor] = {}
        self.pools: dict[torch.dtype, tuple[staging.UvaBufferPool, staging.Lease]] = {}
        self.ints = self.tensor(torch.int32)
        self.flat = staging.StagedWriteTensor(6, torch.int64, manager=self.manager)
        self.flat.stage_write_elem(1, 7)
        self.writer = staging.FusedStagedWriter(None, 4, manager=self.manager)
        self.pool, self.lease = self.pool_of(torch.int32)
        self.wide = staging.UvaBufferPool((2, 3), torch.int32, manager=self.manager)
        self.views["wide"] = self.wide.copy_to_uva([[1, 2, 3]])
        self.backed = self._backed("compare")
        self.marked = self._backed("caller")
        self.uva = self._buffer(staging.UvaBuffer)
        self.non_uva = self._buffer(staging.NonUvaBuffer)

    def tensor(self, dtype: torch.dtype) -> staging.StagedWriteTensor:
        """The (4, 5) tensor of `dtype`, with element [1, 1] staged."""
        if dtype not in self.tensors:
            self.tensors[dtype] = staging.StagedWriteTensor((4, 5), dtype, manager=self.manager)
            self.tensors[dtype].stage_write(1, 1, [1])
        return self.tensors[dtype]

    def pool_of(self, dtype: torch.dtype) -> tuple[staging.UvaBufferPool, staging.Lease]:
        """The pool of 4 elements of `dtype`, and the lease of what it published last."""
        if dtype not in self.pools:
            pool = staging.UvaBufferPool(4, dtype, manager=self.manager)
            self.pools[dtype] = (pool, pool.lease([1, 0, 1]))
        return self.pools[dtype]

    def _backed(self, tracking: Any) -> staging.UvaBackedTensor:
        tensor = staging.UvaBackedTensor(4, torch.int32, tracking=tracking, manager=self.manager)
        tensor.np[0] = 3
        if tracking == "caller":
            tensor.mark_dirty()
        tensor.copy_to_uva()
        return tensor

    def _buffer(self, kind: type[staging.UvaBuffer]) -> staging.UvaBuffer:
        buffer = kind(4, torch.int16, manager=self.manager)
        buffer.np[:] = 9
        self.views[kind.__name__] = buffer.uva()
        return buffer

    def other(self) -> World:
        """A world whose manager is not this one."""
        self._others.append(World(self.world.name))
        return self._others[-1]

    def enter(self, step: AbstractContextManager[object]) -> None:
        """Enter a step that stays open until the next good calls."""
        self._open.enter_context(step)

    def state(self) -> dict[str, object]:
        """What each object shows: the address and contents of its device tensor; and steps and slots so far."""
        views = {**self.views, "flat": self.flat.gpu, "backed": self.backed.gpu, "marked": self.marked.gpu}
        views |= {f"tensor {dtype}": tensor.gpu for dtype, tensor in self.tensors.items()}
        views |= {f"pool {dtype}": lease.tensor for dtype, (_, lease) in self.pools.items()}
        shown: dict[str, object] = {name: (view.data_ptr(), self._read(view)) for name, view in views.items()}
        slots = [pool.num_slots for pool in (self.pool, self.wide, self.backed.pool, self.marked.pool)]
        return {**shown, "steps": self.manager.current_step, "slots": slots}

    def check_that_all_works(self) -> None:
        """Make a good call on each object; assert that it gives the right bits, and what was staged before."""
        self._open.close()
        for tensor in self.tensors.values():
            tensor.stage_write(2, 2, [1])
        self.flat.stage_writes([5], 0, [6])
        self.writer.apply([self.flat, *self.tensors.values()])
        due = np.zeros((4, 5), np.int64)
        due[1, 1] = due[2, 2] = 1
        for tensor in self.tensors.values():
            assert self._read(tensor.gpu) == due.tolist()
        assert self._read(self.flat.gpu) == [0, 7, 0, 0, 0, 6]
        for pool, before in self.pools.values():
            lease = pool.lease([0, 1])
            assert self._read(lease.tensor) == [0, 1]
            assert lease.slot == (before.slot + 1) % DEPTH  # nothing was published in between
        assert self._read(self.wide.copy_to_gpu([[4, 5, 6]])) == [[4, 5, 6]]
        self.marked.np[2] = 8
        self.marked.mark_dirty(2)
        self.backed.np[1] = 5
        self.manager.publish()
        assert self._read(self.backed.gpu) == [3, 5, 0, 0]
        assert self._read(self.marked.gpu) == [3, 0, 8, 0]
        for buffer in (self.uva, self.non_uva):
            buffer.np[0] = 1
            assert self._read(buffer.uva(2)) == [1, 9]
        with self.manager.step():
            assert self._read(staging.async_tensor_h2d([1.5], manager=self.manager)) == [1.5]

    def _read(self, tensor: torch.Tensor) -> object:
        self.world.settle()
        return tensor.cpu().tolist()

    def close(self) -> None:
        """Settle and close every manager."""
        self._open.close()
        for world in (self.world, *self._others):
            world.settle()
            world.manager.close()
