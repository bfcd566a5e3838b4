"""Inputs that a target has to refuse, and calls that collide: what an engine does wrong, done on purpose."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from rig.ops import Collide

_BRIEF_S = 0.2  # how long a colliding call may wait for the other before the other goes on
_END_S = 10.0


class SourceFailedError(Exception):
    """What an engine's own iterable raises while a target reads it."""


def spoilt(values: Any, how: str) -> Any:
    """The values with no number in the midst ("value"), or as an iterable that raises there ("iterable")."""
    flat = values if isinstance(values, list) else values.tolist()
    return _broken(flat) if how == "iterable" else _with_text(flat)


def _broken(values: list[Any]) -> Iterator[Any]:
    yield from values[: len(values) // 2]
    raise SourceFailedError("the engine's iterable failed midway")


def _with_text(values: list[Any]) -> list[Any]:
    middle = len(values) // 2
    inner = values[middle] if values else None
    return [*values[:middle], _with_text(inner) if isinstance(inner, list) else "no number", *values[middle + 1 :]]


class Collision:
    """`outer` of an iterable in the midst of which `inner` is called; returns whether the target accepted that."""

    def __init__(
        self, op: Collide, outer: Callable[[Any], Any], inner: Callable[[Any], Any], values: list[Any]
    ) -> None:
        self._op, self._outer, self._inner = op, outer, inner
        *self._values, self._last = values
        self._accepted = False
        self._thread: threading.Thread | None = None

    def __call__(self) -> bool:
        try:
            self._outer(self._given())
        finally:
            if self._thread is not None:
                self._thread.join(_END_S)
        if self._thread is not None and self._thread.is_alive():
            raise TimeoutError(f"stage_write_elem waits after the call that it met has ended {_END_S:g} s ago")
        return self._accepted

    def _given(self) -> Iterator[Any]:
        middle = len(self._values) // 2
        yield from self._values[:middle]
        if self._op.how == "thread":
            self._thread = threading.Thread(target=self._collide, name="rig-collide", daemon=True)
            self._thread.start()
            self._thread.join(_BRIEF_S)
        else:
            self._collide()
        yield from self._values[middle:]

    def _collide(self) -> None:
        try:
            self._inner(self._last)
        except Exception:  # a refusal, which is an honest answer
            return
        self._accepted = True
