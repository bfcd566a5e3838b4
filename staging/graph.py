"""A slot that stays where it is, for CUDA graphs: what a graph reads lies at the address that was baked into it."""

from __future__ import annotations

import time
import weakref
from typing import Any

import torch

from staging.accounting import Accounting
from staging.backend import Block
from staging.errors import SlotInUseError, StagingError
from staging.manager import DeviceMemoryManager
from staging.policies import Guard
from staging.slots import Slot, await_readers, order_behind, rows_of
from staging.usage import Exclusive, exclusive

_GRACE_S = 200e-6  # a fence that was just put on an idle stream takes the device some microseconds


class HeldSlot(Exclusive):
    """A slot out of its pool's rotation, from `UvaBufferPool.hold_for_graph`: same address until `release`.

    Capture readers of `.tensor`; then `publish` new contents before each replay. Replays are launched on the
    stream that is current at the next `publish`; others are told by `retire` or the manager's. Keep the handle as
    long as any graph that reads it: a dropped one is released. Where a publish waits for the last replay, two held
    slots with a graph each, used in turn, let the host run a replay ahead. One call at a time; any thread.
    """

    def __init__(self, slot: Slot, *, manager: DeviceMemoryManager, guard: Guard, name: str) -> None:
        self.manager, self.name = manager, name
        buffer = slot.buffer
        self.shape, self.dtype = buffer.shape, buffer.dtype
        self._slot: Slot | None = slot
        self._tensor = buffer.block.device.view(buffer.dtype).view(buffer.shape)
        self._guard = guard
        key = object()
        manager.held[key] = name
        self._let_go = weakref.finalize(self, _let_go, manager.held, key, manager.accounting, name)
        self._let_go.atexit = False

    @property
    def tensor(self) -> torch.Tensor:
        """All rows of the slot on the device; raises StagingError once it is released."""
        self._held()
        return self._tensor

    @exclusive
    def publish(self, x: Any) -> torch.Tensor:
        """Copy `x` over the slot's first rows, converted as by `copy_to_uva`; those rows of `tensor`.

        Where the device reads host memory in place, the host first waits for what is queued on the current stream
        and the retired ones up to here, replays included; under guard="raise" it raises SlotInUseError instead,
        under "trust" it does neither. Elsewhere the copy is queued behind it. Raises StagingError once released
        or while capturing, ValueError for more rows than the slot has, else as `copy_to_uva`; whenever it raises,
        the slot's contents are as they were.
        """
        manager, slot = self.manager, self._held()
        manager.check()
        manager.backend.refuse_capture()
        rows = rows_of(x, self.shape[1:], self.dtype)
        if len(rows) > slot.num_rows:
            raise ValueError(
                f"{len(rows)} rows for a held slot of {slot.num_rows} of pool {self.name!r}, which cannot grow: "
                "graphs know its address. Publish the largest contents through the pool before you hold the slot"
            )
        manager.reclaim()
        if self._guard != "trust":
            self._await_replays(slot)
        slot.step = manager.current_step
        slot.num_uses += 1
        slot.buffer.block.lease()
        slot.buffer.np[: len(rows)] = rows
        return slot.buffer.publish(0, len(rows))

    @exclusive
    def retire(self, stream: Any) -> None:
        """Tell that replays or other readers were launched on `stream` up to here; the next publish, and the end
        of the memory, wait for them as well."""
        slot = self._held()
        self.manager.check()
        self.manager.backend.refuse_capture(stream)
        slot.buffer.block.used(self.manager.backend.fence(stream))

    @exclusive
    def release(self) -> None:
        """Give the slot up, once its graphs are replayed no more: its memory is freed behind the fence of the
        pool's next publish, or the step's end. Touches no device; again is fine."""
        if self._slot is not None:
            self._slot.buffer.drop()
            self._slot, self._tensor = None, torch.empty(0)
            self._let_go()

    def _held(self) -> Slot:
        if self._slot is None:
            raise StagingError(f"the held slot of pool {self.name!r} was released; hold another one and capture anew")
        return self._slot

    def _await_replays(self, slot: Slot) -> None:
        block, backend = slot.buffer.block, self.manager.backend
        self.manager.fence_readers(block)
        if not _done(block, within_s=_GRACE_S if self._guard == "raise" else 0):
            what = f"held slot {slot.index} of pool {self.name!r} (published in step {slot.step})"
            if self._guard == "raise":
                raise SlotInUseError(f"{what} is still read; retry later, or use guard='wait'")
            await_readers(block, what, self.manager, self.name)
        order_behind(block, backend)


def _done(block: Block, *, within_s: float) -> bool:
    begin = time.perf_counter()
    while not all(fence.done() for fence in block.host_fences()):
        if time.perf_counter() - begin >= within_s:
            return False
    return True


def _let_go(held: dict[object, str], key: object, accounting: Accounting, name: str) -> None:
    held.pop(key, None)
    accounting.forget_slots(1, name)
