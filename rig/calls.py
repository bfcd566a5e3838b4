"""How the drive makes a target's calls: on the chosen thread, timed, and ended where they never return."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rig.overdue import TimeLimit
from rig.threads import Threads

_GRACE_S = 1.0  # in which a call that began before the deadline may still return


class Calls:
    """`deadline_ns` is by `clock_ns`; None: calls may take for ever. `close` ends all threads."""

    def __init__(self, deadline_ns: int | None, clock_ns: Callable[[], int]) -> None:
        left_s = None if deadline_ns is None else max(0, deadline_ns - clock_ns()) / 1e9 + _GRACE_S
        self.threads, self.limit, self._clock_ns = Threads(), TimeLimit(left_s), clock_ns
        self.limit.__enter__()

    def chosen(self, function: Callable[[], Any]) -> tuple[Any, int]:
        """What it returns on the chosen thread, and the nanoseconds that it took."""
        told: tuple[Any, int] = self.threads.call(partial(self.here, function))
        return told

    def here(self, function: Callable[[], Any]) -> tuple[Any, int]:
        """The same on the thread that calls this, which for a manager's steps is the drive's own."""
        return self.limit.call(partial(self._timed, function))

    def close(self) -> None:
        self.limit.__exit__()
        self.threads.close()

    def _timed(self, function: Callable[[], Any]) -> tuple[Any, int]:
        begin = self._clock_ns()
        result = function()
        return result, self._clock_ns() - begin
