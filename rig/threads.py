"""Which thread makes a target's calls: one at a time, the drive waits for each."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class Threads:
    """Threads by name; "main" is the drive's own, the others live until `close`."""

    def __init__(self) -> None:
        self._others: dict[str, ThreadPoolExecutor] = {}
        self._current: ThreadPoolExecutor | None = None

    def choose(self, name: str) -> None:
        """Let `name` make the calls from here on."""
        self._current = None if name == "main" else self._others.setdefault(name, ThreadPoolExecutor(1, f"rig-{name}"))

    def call(self, function: Callable[[], Any]) -> Any:
        """Call it on the chosen thread; returns or raises what it does."""
        return function() if self._current is None else self._current.submit(function).result()

    def close(self) -> None:
        """End the threads."""
        for thread in self._others.values():
            thread.shutdown()
        self._others.clear()
        self._current = None
