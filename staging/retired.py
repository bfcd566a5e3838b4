"""Memory that nobody owns any more, kept until the device is done with it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from staging.accounting import Accounting
from staging.backend import Backend, Block
from staging.fence import StepEnd, wait_all

_holding: set[RetiredMemory] = set()
"""Whoever holds unfreed blocks, so that they outlive a manager that is dropped with its pools."""


class RetiredMemory:
    """Blocks first dropped, then fenced, then freed.

    Dropping only appends to a queue, so finalizers may do it from any thread and inside any lock; fencing and
    freeing happen in `sweep`. A block is free when the fence made after its drop and all fences it carries are done.
    """

    def __init__(self, backend: Backend, accounting: Accounting) -> None:
        self._backend = backend
        self._accounting = accounting
        self._dropped: deque[Block] = deque()
        self._fenced: deque[tuple[StepEnd, Block]] = deque()
        self._sweeping = threading.Lock()
        self._orphaned = False

    def has_any(self) -> bool:
        """Whether there is a block that is not freed yet."""
        return bool(self._dropped or self._fenced)

    def drop(self, block: Block) -> None:
        """Take a block over."""
        self._dropped.append(block)
        _holding.add(self)

    def sweep(self, end: Callable[[], StepEnd] | None) -> None:
        """Fence what was dropped by `end()` (None: not yet, the step goes on), and free what is done.

        Also does so for whoever's manager is gone.
        """
        if self._dropped or self._fenced:
            self._sweep(end)
        for other in tuple(_holding) if _holding else ():
            if other._orphaned and other is not self:
                other._sweep_alone()

    def _sweep_alone(self) -> None:
        try:
            self._sweep(self._fence_now)
        except RuntimeError as error:
            if not self._backend.is_device_error(error):
                raise
            self._orphaned = False  # its device is lost, which is no matter of whoever sweeps here

    def _sweep(self, end: Callable[[], StepEnd] | None) -> None:
        if self._backend.is_capturing():
            return  # a fence or a query would ruin the graph; the next sweep does it
        if self._sweeping.acquire(blocking=False):  # else another thread is at it
            try:
                self._fence(end)
                while self._fenced and self._fenced[0][0].done() and self._fenced[0][1].is_idle():
                    self._accounting.remove(self._fenced.popleft()[1])
                if not self.has_any():
                    _holding.discard(self)
            finally:
                self._sweeping.release()

    def wait(self) -> None:
        """Wait for the fences that are there, and free what they held."""
        for end, block in tuple(self._fenced):
            wait_all((*end.fences, *block.fences()))
        self.sweep(None)

    def orphan(self) -> None:
        """The manager is gone: whoever sweeps next sweeps this too. For finalizers."""
        self._orphaned = True

    def _fence(self, end: Callable[[], StepEnd] | None) -> None:
        count = len(self._dropped)  # what is dropped after the fence belongs to the next one
        if count and end is not None:
            fenced = end()
            self._fenced.extend((fenced, self._dropped.popleft()) for _ in range(count))

    def _fence_now(self) -> StepEnd:
        return StepEnd(-1).close((self._backend.fence(),))
