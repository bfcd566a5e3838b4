"""Fences: stream-ordered completion marks, and the end of a step that many leases share."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable
from typing import Protocol


class Fence(Protocol):
    """A point on one stream: done when all work queued there before it has run."""

    @property
    def stream(self) -> Hashable: ...

    def done(self) -> bool:
        """Whether the point was passed; never waits."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block the host until the point is passed or the time is up; returns `done()`."""


class StepEnd:
    """The end of a step: open while the step runs, then the fences that bound the step's readers.

    Every lease that ends in a step refers to that step's one `StepEnd`, so closing it costs the same for
    one pool as for fifty. Outside step mode each lease gets an end of its own, closed at once.
    """

    __slots__ = ("closed", "fences", "step")

    def __init__(self, step: int) -> None:
        self.step = step
        self.closed = False
        self.fences: tuple[Fence, ...] = ()

    def close(self, fences: Iterable[Fence]) -> StepEnd:
        """Set the fences; the end is final from here on."""
        self.fences = tuple(fences)
        self.closed = True
        return self

    def done(self) -> bool:
        """Whether the step ended and all of its readers did."""
        if self.closed and all(fence.done() for fence in self.fences):
            self.fences = ()
            return True
        return False


ENDED = StepEnd(-1).close(())
"""Of a lease that nobody was given, or whose readers its block knows."""


def wait_all(fences: Iterable[Fence], timeout_s: float | None = None) -> Fence | None:
    """Wait for every fence within one common time limit; returns the first that is not done, else None."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    for fence in fences:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not fence.wait(left):
            return fence
    return None
