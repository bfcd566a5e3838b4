"""Backed tensors side by side: one comparison and one copy publish all of them."""

from __future__ import annotations

import ctypes
import weakref
from typing import NamedTuple, Protocol

import numpy as np
import torch

from staging.backend import Block
from staging.dtypes import carrier, nbytes_of
from staging.fence import ENDED
from staging.manager import DeviceMemoryManager
from staging.packing import Array
from staging.policies import Guard
from staging.pool import UvaBufferPool
from staging.slots import Slot, SlotRing

CAPACITY = 1 << 18
"""Host bytes of a group; tensors over a quarter of it publish alone."""

_ALIGNMENT = 64
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


class Member(Protocol):
    """A backed tensor, as its group sees it."""

    def follow(self) -> None:
        """Be bound to the group's slot again."""


class Place(NamedTuple):
    """Where a member's contents lie in the group, and which of its members it is."""

    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    number: int = 0

    @property
    def stop(self) -> int:
        return self.start + nbytes_of(self.shape, self.dtype)


class BackedGroup:
    """Small backed tensors with one depth, guard and tracking. Their host arrays lie in one array, and `publish`
    copies that into one slot, of which each tensor gets its part; nothing changed, nothing copied.

    A part is never given to a second tensor: views of a dropped one may live on.
    """

    def __init__(self, manager: DeviceMemoryManager, depth: int, guard: Guard | None, *, compares: bool) -> None:
        self.manager, self._compares = manager, compares
        self.kind = (depth, guard, compares)
        self.host: Array = np.zeros(CAPACITY, np.uint8)
        self._address = self.host.ctypes.data
        self.epoch = 0  # publishes so far; a member that saw an earlier one was rebound since
        self.is_dirty = True  # by the callers' word, or because a member published alone
        self.views: list[torch.Tensor] = []
        """Each member's part of the current slot, on the device."""
        self._ring = SlotRing((4096,), torch.uint8, depth, manager, guard, name="UvaBackedTensor")
        self._used = 0
        self._places: list[Place] = []
        self._apart: list[weakref.ref[Member]] = []  # members that are bound to something else
        self._alone: list[UvaBufferPool] = []  # of members that published alone since
        self._slot: Slot | None = None
        self._slot_address = 0

    def place(self, shape: tuple[int, ...], dtype: torch.dtype) -> Place | None:
        """Room for a tensor; None where it is too large, or the group is full. The next publish includes it."""
        nbytes = nbytes_of(shape, dtype)
        if nbytes > CAPACITY // 4 or self._used + nbytes > CAPACITY:
            return None
        place = Place(self._used, shape, dtype, len(self._places))
        self._places.append(place)
        self._used += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        self.is_dirty = True
        return place

    def set_apart(self, member: Member, pool: UvaBufferPool | None = None) -> None:
        """A member is bound to something else than its part, until the next publish; where it published by itself,
        that takes it along again and ends the lease of its pool."""
        self._apart.append(weakref.ref(member))
        if pool is not None:
            self._alone.append(pool)
            self.is_dirty = True

    @property
    def block(self) -> Block:
        """The current slot's."""
        assert self._slot is not None
        return self._slot.buffer.block

    def part(self, place: Place) -> Array:
        """The current slot's host array of a member."""
        return self.block.host.numpy()[place.start : place.stop].view(carrier(place.dtype)).reshape(place.shape)

    def publish(self) -> None:
        """Publish every member, unless nothing changed; each one's `device_tensor` is its part of the slot again.
        The caller has refused captures."""
        if not self._is_current():
            self.is_dirty = True  # until all of the below went through
            manager, used = self.manager, self._used
            manager.reclaim()
            slot = self._ring.take(used)
            slot.step = manager.current_step
            slot.buffer.np[:used] = self.host[:used]
            try:
                manager.backend.publish(slot.buffer.block, 0, used)
                end = manager.lease_end(fenced=self._ring.guard != "trust")
            except BaseException:
                slot.end_lease(ENDED)  # nobody was given it
                raise
            if self._slot is not None:
                self._slot.end_lease(end)
            for pool in self._alone:
                pool.end_current(end)
            self._alone.clear()
            self._slot, self._slot_address = slot, slot.buffer.block.host.data_ptr()
            self.views = self._parts_of(slot)
            self.epoch += 1
            self.is_dirty = False
        if self._apart:
            for reference in self._apart:
                member = reference()
                if member is not None:
                    member.follow()
            self._apart.clear()

    def _is_current(self) -> bool:
        if self.is_dirty or self._slot is None:
            return False
        return not self._compares or not _memcmp(self._address, self._slot_address, self._used)

    def _parts_of(self, slot: Slot) -> list[torch.Tensor]:
        """Each member's view of a slot, made once for each of the slot's buffers."""
        parts: list[torch.Tensor] | None = slot.face
        if parts is None:
            parts = slot.face = []
        if len(parts) < len(self._places):
            device = slot.buffer.block.device
            for place in self._places[len(parts) :]:
                parts.append(device[place.start : place.stop].view(place.dtype).view(place.shape))
        return parts


def group_of(
    manager: DeviceMemoryManager,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    *,
    depth: int,
    guard: Guard | None,
    compares: bool,
) -> tuple[BackedGroup, Place] | None:
    """A group of the manager with room for a tensor; None for one that publishes alone. Its members keep it."""
    if not 0 < nbytes_of(shape, dtype) <= CAPACITY // 4:
        return None
    for group in manager.published.groups():
        if isinstance(group, BackedGroup) and group.kind == (depth, guard, compares):
            place = group.place(shape, dtype)
            if place is not None:
                return group, place
    group = BackedGroup(manager, depth, guard, compares=compares)
    manager.published.add_group(group)
    place = group.place(shape, dtype)
    assert place is not None
    return group, place
