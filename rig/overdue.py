"""Calls that never return: an exception raised in their midst, so that a hang costs an assignment and not the seat.

It reaches code that runs in Python, such as a loop which polls for an event. A call that waits in C without coming back
to the interpreter stays with the seat's watchdog.
"""

from __future__ import annotations

import ctypes
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

_AGAIN_S = 0.5  # until a call that swallowed the exception gets it once more
_FRAMES_MAX = 3
_ABOVE = (__file__, str(Path(__file__).with_name("calls.py")))  # what a traceback has above the target's own lines
T = TypeVar("T")


class Overdue(BaseException):
    """Raised in the midst of a call whose time is up; no Exception, since targets catch those."""


class OverdueError(Exception):
    """A call of the target did not return; the text says which, and where it was."""


class TimeLimit:
    """Inside the `with`, ends each `call` that still runs `after_s` seconds from now; None: never.

    `fired` says that one was ended, whatever it made of that.
    """

    def __init__(self, after_s: float | None) -> None:
        self._after_s = after_s
        self._over, self._lock = threading.Event(), threading.Lock()
        self._inside: int | None = None  # the thread that is in a call
        self._thread: threading.Thread | None = None
        self.fired = False

    def __enter__(self) -> TimeLimit:
        if self._after_s is not None:
            self._thread = threading.Thread(target=self._watch, name="rig-overdue", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def call(self, function: Callable[[], T]) -> T:
        """Call it on this thread, one at a time; raises Overdue when the time is up, but never once this has returned.

        The watcher raises only while it holds the lock and sees a thread inside. Leaving takes the same lock, and takes
        back what was raised but has not yet arrived.
        """
        try:
            self._inside = threading.get_ident()
            return function()
        finally:
            try:
                self._leave()
            except Overdue:  # it arrived while leaving, and cannot again before _AGAIN_S
                self._leave()
                raise

    def _leave(self) -> None:
        with self._lock:
            thread, self._inside = self._inside, None
            if self.fired and thread is not None:
                _raise_in(thread, None)

    def _watch(self) -> None:
        left_s = self._after_s
        while not self._over.wait(left_s):
            with self._lock:
                if self._inside is not None:
                    self.fired = True
                    _raise_in(self._inside, Overdue)
            left_s = _AGAIN_S


def place(error: BaseException) -> str:
    """Where a call was when it was ended: file, line and function, the innermost first."""
    frames = traceback.extract_tb(error.__traceback__)
    begin = max((index for index, frame in enumerate(frames) if frame.filename in _ABOVE), default=-1) + 1
    named = [f"{Path(f.filename.strip('<>')).name}:{f.lineno} in {f.name}" for f in reversed(frames[begin:])]
    return ", called at ".join(named[:_FRAMES_MAX]) or "in no line of Python"


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    """Have a thread raise `kind` as soon as it runs Python code; None takes back what it has not raised yet."""
    wanted: Any = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), wanted)
