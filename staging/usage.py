"""Who may use an object, and when: one call at a time, in one process, while its manager is open."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Concatenate, NoReturn, ParamSpec, Protocol, TypeVar

from staging.errors import ConcurrentUseError

P = ParamSpec("P")
R = TypeVar("R")


class Exclusive:
    """Objects of which only one call runs at a time, and which do not pickle.

    The flag is no lock: two threads that race within a few bytecodes may both get in, and an object may
    be handed from one thread to another freely. It catches what matters, a call in the middle of another.
    """

    _busy = False

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} holds memory of this process and does not pickle; "
            "send its size and dtype, and build it anew on the other side"
        )


class _Owner(Protocol):
    def raise_if_lost(self, error: BaseException) -> None: ...


class _Owned(Protocol):
    _busy: bool

    @property
    def manager(self) -> _Owner: ...


T = TypeVar("T", bound=_Owned)


@contextmanager
def all_exclusive(things: Sequence[Exclusive]) -> Iterator[None]:
    """Hold every one of `things` as their own methods would; raises ConcurrentUseError, holding none."""
    for thing in things:
        if thing._busy:
            raise ConcurrentUseError(f"a {type(thing).__name__} is used by another call that is in progress")
    for thing in things:
        thing._busy = True
    try:
        yield
    finally:
        for thing in things:
            thing._busy = False


def exclusive(method: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[T, P], R]:
    """Let `method` raise ConcurrentUseError while another exclusive method of the object is in progress, and
    DeviceLostError where the device is lost under it."""

    @functools.wraps(method)
    def call(self: T, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._busy:
            raise ConcurrentUseError(
                f"{type(self).__name__}.{method.__name__} was called while another call on the same object is in "
                "progress; give each thread its own object, or call from one thread at a time"
            )
        self._busy = True
        try:
            return method(self, *args, **kwargs)
        except RuntimeError as error:
            self.manager.raise_if_lost(error)
            raise
        finally:
            self._busy = False

    return call
