"""What `manager.publish()` publishes: groups of small backed tensors, and large ones by themselves."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Protocol, TypeVar

import torch

T = TypeVar("T")


class Publishable(Protocol):
    """A tensor whose host side is the truth."""

    @property
    def manager(self) -> object: ...

    def copy_to_uva(self, n: int | None = None) -> torch.Tensor: ...


class Group(Protocol):
    """Tensors that are published together."""

    def publish(self) -> None: ...


class Published:
    """Groups and single tensors, in the order they were made, for as long as they live. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: tuple[weakref.ref[Group], ...] = ()
        self._singles: tuple[weakref.ref[Publishable], ...] = ()

    def add_group(self, group: Group) -> None:
        with self._lock:
            self._groups = (*_alive(self._groups), weakref.ref(group))

    def add_single(self, tensor: Publishable) -> None:
        with self._lock:
            self._singles = (*_alive(self._singles), weakref.ref(tensor))

    def groups(self) -> Iterator[Group]:
        """Those that have members."""
        for reference in self._groups:
            group = reference()
            if group is not None:
                yield group

    def singles(self) -> Iterator[Publishable]:
        for reference in self._singles:
            tensor = reference()
            if tensor is not None:
                yield tensor


def _alive(references: tuple[weakref.ref[T], ...]) -> list[weakref.ref[T]]:
    return [reference for reference in references if reference() is not None]
