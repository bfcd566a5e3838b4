"""SIGINT and SIGTERM: the first one ends the run in order, a second one ends the process at once, with `last_words`."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

from rig.verdict import EXIT_INTERRUPTED

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """The run was asked to end while it waited for something."""


class Interrupts:
    """Notes the first signal. `listen` may be called again, since `ray.init` replaces handlers; `restore` puts back the
    first.
    """

    def __init__(self, *, last_words: str = "") -> None:
        self._last_words = last_words
        self.name: str | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._raises = False

    def listen(self) -> None:
        """Take over the signals; does nothing outside the main thread."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                before = signal.signal(number, self._note)
                self._before.setdefault(number, before)

    def restore(self) -> None:
        """Put back the handlers there were before the first `listen`."""
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before = {}

    def check(self) -> None:
        """Raise `Interrupted` if a signal came."""
        if self.name:
            raise Interrupted(self.name)

    def reason(self) -> str | None:
        """Why to stop, or None."""
        return f"interrupted by {self.name}" if self.name else None

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """Inside the block a signal also raises KeyboardInterrupt, for work in this process that would not look."""
        self._raises = True
        try:
            yield
        finally:
            self._raises = False

    def _note(self, number: int, frame: object) -> None:
        if self.name:
            with contextlib.suppress(OSError):  # not print, which may be what was interrupted
                os.write(1, self._last_words.encode(errors="backslashreplace"))
            os._exit(EXIT_INTERRUPTED)
        self.name = signal.Signals(number).name
        if self._raises:
            raise KeyboardInterrupt
