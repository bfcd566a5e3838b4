"""What `manager.publish()` publishes: groups of small backed tensors, and large ones by themselves."""

from __future__ import annotations

import threading
import weakref
from typing import Protocol

import torch


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
        self._groups: list[weakref.ref[Group]] = []
        self._singles: list[weakref.ref[Publishable]] = []

    def add_group(self, group: Group) -> None:
        with self._lock:
            self._groups.append(weakref.ref(group))

    def add_single(self, tensor: Publishable) -> None:
        with self._lock:
            self._singles.append(weakref.ref(tensor))

    def groups(self) -> list[Group]:
        """Those that have members."""
        with self._lock:
            alive = [(reference, reference()) for reference in self._groups]
            self._groups = [reference for reference, group in alive if group is not None]
        return [group for _, group in alive if group is not None]

    def singles(self) -> list[Publishable]:
        with self._lock:
            alive = [(reference, reference()) for reference in self._singles]
            self._singles = [reference for reference, tensor in alive if tensor is not None]
        return [tensor for _, tensor in alive if tensor is not None]
