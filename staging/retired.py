"""Memory that nobody owns any more, kept until the device is done with it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable

from staging.accounting import Accounting
from staging.backend import Block
from staging.fence import Fence, StepEnd, wait_all

Readers = dict[Hashable, Fence]


class RetiredMemory:
    """Blocks first dropped, then fenced, then freed. Dropping only appends to a queue, so that finalizers may
    do it from any thread; fencing and freeing happen in the manager's own calls."""

    def __init__(self, accounting: Accounting) -> None:
        self._accounting = accounting
        self._dropped: deque[tuple[Block, Readers]] = deque()
        self._fenced: deque[tuple[StepEnd, Block, Readers]] = deque()
        self._sweeping = threading.Lock()
        self._closed = False

    def __len__(self) -> int:
        return len(self._dropped) + len(self._fenced)

    def drop(self, block: Block, readers: Readers) -> None:
        """Take a block over; `readers` are the fences of those told to read it on other streams."""
        if self._closed:
            self._accounting.remove(block)
        else:
            self._dropped.append((block, readers))

    def sweep(self, end: Callable[[], StepEnd] | None) -> None:
        """Fence what was dropped by `end()` (None: not yet, the step goes on), and free what is done."""
        if not self._sweeping.acquire(blocking=False):
            return  # another thread is at it
        try:
            if self._dropped and end is not None:
                fenced = end()
                while self._dropped:
                    self._fenced.append((fenced, *self._dropped.popleft()))
            while self._fenced and _is_done(*self._fenced[0]):
                self._accounting.remove(self._fenced.popleft()[1])
        finally:
            self._sweeping.release()

    def close(self) -> None:
        """Nothing is queued any more: what is dropped from here on is freed at once."""
        self._closed = True

    def wait(self) -> None:
        """Wait for the fences that are there, and free what they held."""
        for end, block, readers in tuple(self._fenced):
            wait_all((*end.fences, *readers.values(), *((block.copied,) if block.copied else ())))
        self.sweep(None)


def _is_done(end: StepEnd, block: Block, readers: Readers) -> bool:
    copied = block.copied is None or block.copied.done()
    return copied and end.done() and all(fence.done() for fence in readers.values())
