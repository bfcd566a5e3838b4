"""What a target handed out: checked against what was promised, held as an engine holds it, its slots numbered."""

from __future__ import annotations

from typing import Any

import torch

from rig import values
from rig.cause import Finding
from rig.model import Track
from rig.readers import Readers
from rig.target import Target
from rig.words import Form, Mark

_SLOTS_MAX = 4096  # publishes whose slot is remembered


class Handles:
    """Views by name, those of this step or the last one of an earlier step; slots in the order of their first use."""

    def __init__(self, target: Target, readers: Readers) -> None:
        self._target, self._readers = target, readers
        self.views: dict[str, list[Any]] = {}
        self.slot: dict[str, int | None] = {}  # of the last publish
        self.slots: dict[tuple[str, Mark], int] = {}
        self._fresh: set[str] = set()  # names whose views are of this step
        self._addresses: dict[str, dict[int, int] | None] = {}
        self._homes: dict[str, int] = {}  # where staged tensors live

    def begin_step(self) -> None:
        """The engine lets go of what earlier steps were handed as soon as it is handed something new."""
        self._fresh.clear()

    def forget_past(self) -> None:
        """Drop which slot each past publish had."""
        self.slots.clear()

    def forget(self, name: str) -> None:
        """An object is gone, or made anew."""
        for kept in (self.views, self.slot, self._addresses, self._homes):
            kept.pop(name, None)
        self.slots = {(of, mark): slot for (of, mark), slot in self.slots.items() if of != name}

    def take(
        self, track: Track, handle: Any, num_rows: int | None, mark: Mark, *, step: int, copied: bool = False
    ) -> Finding | None:
        """Take hold of a handle if it is what was promised; else nothing is held, and that is a finding."""
        name, what = track.form.name, track.make.what
        try:
            problem = _unlike(handle, track.form, num_rows, self._target.device)
        except Exception as error:
            if type(handle) is torch.Tensor:
                raise
            problem = f"handed out a {type(handle).__name__} that cannot be looked at: {type(error).__name__}: {error}"
        views = self.views.setdefault(name, [])
        if problem is not None:
            views.clear()
            return Finding(kind="dtype", tensor=name, summary=f"{what} `{name}`: {problem}")
        if what == "staged":
            views[:] = [self._readers.hold(handle, resident=True)]
            if self._homes.setdefault(name, handle.data_ptr()) != handle.data_ptr():
                text = f"staged `{name}` moved by step {step}: what holds its address reads stale memory"
                return Finding(kind="stale_alias", tensor=name, summary=text)
            return None
        self.slot[name] = None if copied else self._number(track, handle.data_ptr(), num_rows)
        if (slot := self.slot[name]) is not None:
            self.slots[name, mark] = slot
        if len(self.slots) > _SLOTS_MAX:
            del self.slots[next(iter(self.slots))]
        view = self._readers.hold(handle, resident=copied or what == "nonuva", ours=copied)
        if name not in self._fresh:
            views.clear()
            self._fresh.add(name)
        views.append(view)
        return None

    def _number(self, track: Track, address: int, num_rows: int | None) -> int | None:
        """The slot at an address; None where it cannot be told: after growth, or beyond the slots that may be."""
        name, depth = track.form.name, track.make.depth or 0
        known = self._addresses.setdefault(name, {})
        if known is None or (num_rows or 0) > track.form.length:
            self._addresses[name] = None
            return None
        if address not in known and len(known) < depth + self._target.fenced:
            known[address] = len(known)
        return known.get(address)


def _unlike(handle: Any, form: Form, num_rows: int | None, device: torch.device) -> str | None:
    """How a handle differs from the tensor that was promised."""
    if not isinstance(handle, torch.Tensor):
        return f"handed out {type(handle).__name__}, not a tensor"
    shape, dtype = form.shape(num_rows), values.TORCH[form.dtype]
    if handle.dtype != dtype:
        return f"handed out {handle.dtype}, asked for {dtype}"
    if tuple(handle.shape) != shape:
        return f"handed out shape {tuple(handle.shape)}, expected {shape}"
    if handle.layout != torch.strided:
        return f"handed out a tensor of layout {handle.layout}"
    if handle.device != device:
        return f"handed out memory of {handle.device}, expected {device}"
    return None
