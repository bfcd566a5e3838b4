"""Backed tensors side by side: one comparison and one copy publish all of them."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch

from staging.backend import Block
from staging.buffer import UvaBuffer
from staging.dtypes import carrier
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

    shape: tuple[int, ...]
    dtype: torch.dtype
    device_tensor: torch.Tensor


class Place(NamedTuple):
    """Where a member's contents lie in the group."""

    start: int
    nbytes: int


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
        self.is_short = False  # whether a member is bound to its first rows only
        self._ring = SlotRing((4096,), torch.uint8, depth, manager, guard)
        self._used = 0
        self._members: list[tuple[weakref.ref[Member], Place]] = []
        self._alone: list[UvaBufferPool] = []  # of members that published alone since
        self._slot: Slot | None = None
        self._parts: dict[int, tuple[UvaBuffer, list[tuple[weakref.ref[Member], torch.Tensor]]]] = {}  # by slot

    def place(self, nbytes: int) -> Place | None:
        """Room for a tensor; None where it is too large, or the group is full."""
        if nbytes > CAPACITY // 4 or self._used + nbytes > CAPACITY:
            return None
        place = Place(self._used, nbytes)
        self._used += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return place

    def join(self, member: Member, place: Place) -> None:
        """Let `publish` include `member` for as long as it lives."""
        self._members.append((weakref.ref(member), place))
        self.is_dirty = True

    def went_alone(self, pool: UvaBufferPool) -> None:
        """A member published by itself: the next publish takes it along again, and ends the lease of its pool."""
        self._alone.append(pool)
        self.is_dirty = True

    @property
    def block(self) -> Block:
        """The current slot's."""
        assert self._slot is not None
        return self._slot.buffer.block

    def part(self, place: Place, shape: Sequence[int], dtype: torch.dtype) -> Array:
        """The current slot's host array of a member."""
        raw = self.block.host.numpy()[place.start : place.start + place.nbytes]
        return raw.view(carrier(dtype)).reshape(shape)

    def device_part(self, place: Place, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """The current slot's device tensor of a member."""
        return self.block.device[place.start : place.start + place.nbytes].view(dtype).view(tuple(shape))

    def publish(self) -> None:
        """Publish every member, unless nothing changed; rebinds each one's `device_tensor`."""
        if self._is_current():
            if self.is_short and self._slot is not None:
                self._bind(self._slot)
            return
        self.is_dirty = True  # until all of the below went through
        manager, used = self.manager, self._used
        manager.reclaim()
        slot = self._ring.acquire(used)
        slot.step = manager.current_step
        slot.buffer.np[:used] = self.host[:used]
        manager.backend.publish(slot.buffer.block, 0, used)
        end = manager.lease_end(fenced=self._ring.guard != "trust")
        if self._slot is not None:
            self._slot.end_lease(end)
        for pool in self._alone:
            pool.end_current(end)
        self._alone.clear()
        self._slot = slot
        self._bind(slot)
        self.epoch += 1
        self.is_dirty = False

    def _bind(self, slot: Slot) -> None:
        for reference, part in self._parts_of(slot):
            member = reference()
            if member is not None:
                member.device_tensor = part
        self.is_short = False

    def _is_current(self) -> bool:
        if self.is_dirty or self._slot is None:
            return False
        if not self._compares:
            return True
        return not _memcmp(self._address, self._slot.buffer.block.host.data_ptr(), self._used)

    def _parts_of(self, slot: Slot) -> list[tuple[weakref.ref[Member], torch.Tensor]]:
        """Each member's view of a slot, made once for each of the slot's buffers."""
        buffer, parts = self._parts.get(slot.index, (None, []))
        if buffer is not slot.buffer or len(parts) != len(self._members):
            device = slot.buffer.block.device
            parts = []
            for reference, (start, nbytes) in self._members:
                member = reference()
                if member is not None:
                    view = device[start : start + nbytes].view(member.dtype).view(member.shape)
                    parts.append((reference, view))
            self._members = [pair for pair in self._members if pair[0]() is not None]
            self._parts[slot.index] = (slot.buffer, parts)
        return parts


def group_of(
    manager: DeviceMemoryManager, depth: int, guard: Guard | None, *, compares: bool, nbytes: int
) -> tuple[BackedGroup, Place] | None:
    """A group of the manager with room for `nbytes`; None for a tensor that publishes alone. Its members keep it."""
    if not 0 < nbytes <= CAPACITY // 4:
        return None
    for group in manager.published.groups():
        if isinstance(group, BackedGroup) and group.kind == (depth, guard, compares):
            place = group.place(nbytes)
            if place is not None:
                return group, place
    group = BackedGroup(manager, depth, guard, compares=compares)
    manager.published.add_group(group)
    place = group.place(nbytes)
    assert place is not None
    return group, place
