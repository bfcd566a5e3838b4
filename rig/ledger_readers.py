"""Readers that a ledger keeps account of: what is launched, settled and freed, and what a foreign target overwrites."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from rig.ledger import Ledger
from rig.ledger_edges import MAIN, Access
from rig.pointers import host_address
from rig.readers import Bytes, Readers, Ticket

_HOST_KEY = "host"  # of a fence of the cpu backend, which has no streams
_SLOTS_MAX = 64  # addresses of a tensor that are numbered; whoever has more gives out fresh memory


@dataclass(slots=True)
class _Held:
    """A view of `readers` and where its memory lies; it keeps that alive no longer than the view does."""

    view: Any
    ours: bool
    resident: bool
    start: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    itemsize: int
    weak: StorageWeakRef
    base: int  # of the storage
    slot: int | None

    def span(self, first: int = 0, num_rows: int | None = None) -> tuple[int, int]:
        """Address and bytes of the rows from `first` on, gaps included."""
        count = self.shape[0] - first if num_rows is None else num_rows
        shape, start = (count, *self.shape[1:]), self.start + first * self.stride[0] * self.itemsize
        if 0 in shape:
            return start, 0
        return start, (sum((n - 1) * step for n, step in zip(shape, self.stride, strict=True)) + 1) * self.itemsize


@dataclass(slots=True)
class _Queued:
    """A read that the host does not know to be over. `is_lent`: the memory is not the reader's own, so it must outlive
    the read. `before`: what lay there at the launch, where the target's own writes cannot be seen."""

    access: Access
    weak: StorageWeakRef
    is_lent: bool
    address: int | None = None  # the host's
    before: bytes = b""


class LedgerReaders:
    """Launches reads by `readers` and notes them, with the edges that they make themselves.

    A write of a target that does not tell of it is found by its effect: a handle is published over memory that a reader
    is queued on, and the bytes there are not those of the launch. `is_ours` says which objects tell of their writes.
    """

    def __init__(
        self, readers: Readers, ledger: Ledger, *, is_ours: Callable[[str | None], bool], device: torch.device
    ) -> None:
        self._readers, self._ledger, self._is_ours, self._device = readers, ledger, is_ours, device
        self._names: dict[Hashable, str] = {}
        self._queued: list[_Queued] = []
        self._slots: dict[str, dict[int, int]] = {}
        self.blocks: set[int] = set()  # where the target told us that it allocated pinned memory
        self.stream(MAIN)

    def hold(self, tensor: torch.Tensor, *, resident: bool = False, ours: bool = False) -> _Held:
        storage, name = tensor.untyped_storage(), self._ledger.tensor
        weak, base = StorageWeakRef(storage), storage.data_ptr()
        del storage
        view = self._readers.hold(tensor, resident=resident, ours=ours)
        start, slot = tensor.data_ptr(), None
        if not (resident or ours):
            slot = self._slot(name, start)
        shape, stride = tuple(tensor.shape), tensor.stride()
        held = _Held(view, ours, resident, start, shape, stride, tensor.element_size(), weak, base, slot)
        if not (resident or ours or self._is_ours(name)):
            self._compare(held)
        return held

    def launch(self, view: _Held, num_rows: int | None, *, stream: str, **more: Any) -> Ticket:
        ticket = self._readers.launch(view.view, num_rows, stream=stream, **more)
        start, nbytes = view.span(more.get("first", 0), num_rows)
        shared, name = not (view.resident or view.ours), self._ledger.tensor
        slot = self._slot(name, view.start) if shared and view.slot is None else view.slot
        actor = MAIN if stream != MAIN and self.stream(stream) is None else stream
        if actor != MAIN:
            self._ledger.order(self._ledger.mark(MAIN), stream=actor)
        access = self._ledger.enqueue_read(actor, start, nbytes, slot=slot)
        if actor != MAIN and view.resident:
            self._ledger.order(self._ledger.mark(actor), stream=MAIN)
        lent = shared and not ticket.content_only and (self._device.type == "cpu" or view.base in self.blocks)
        queued = _Queued(access, view.weak, lent)
        if shared and nbytes and not self._is_ours(name):
            queued.address = self._host_address(start)
            queued.before = b"" if queued.address is None else ctypes.string_at(queued.address, nbytes)
        self._queued.append(queued)
        return _Noted(ticket, access, self._ledger)

    def stream(self, name: str) -> Any:
        stream = self._readers.stream(name)
        if stream is not None:
            self._names[_key(stream)] = name
        return stream

    def name_of(self, key: Hashable) -> str:
        """The name of a stream by the key that its fences carry; where there are no streams, the main one's."""
        return MAIN if key == _HOST_KEY else self._names.get(key, f"{key:#x}" if isinstance(key, int) else str(key))

    def main_key(self) -> Hashable:
        """What fences call the stream that is current in the rig's own thread, where the rig launches its readers."""
        stream = self._readers.stream(MAIN)
        return _HOST_KEY if stream is None else _key(stream)

    def flush(self, *, everything: bool) -> None:
        self._readers.flush(everything=everything)

    def poll(self, step: int) -> None:
        self._readers.poll(step)
        self.see_frees()

    def begin_step(self) -> None:
        self._readers.begin_step()

    def see_frees(self) -> None:
        """Take note of memory that was freed under queued readers."""
        left = []
        for queued in self._queued:
            if self._ledger.is_over(queued.access):
                continue
            if not queued.weak.expired():
                left.append(queued)
                continue
            start, nbytes = queued.access.start, queued.access.stop - queued.access.start
            if queued.is_lent:
                self._ledger.free(start, nbytes)
            else:
                self._ledger.forget(start, nbytes)
        self._queued = left

    def allocated(self, *memory: torch.Tensor) -> None:
        """The target got this memory: whatever was queued on its addresses was queued on other memory."""
        self.see_frees()
        for tensor in memory:
            self._ledger.forget(tensor.data_ptr(), tensor.nbytes)

    def _compare(self, held: _Held) -> None:
        """Look for a write of the target over queued readers of the memory that it has just handed out."""
        self.see_frees()
        first, nbytes = held.span()
        last = first + nbytes
        if first < last and self._host_address(first) is None:
            self._ledger.counts["unseen"] += 1
            return
        for queued in self._queued:
            access = queued.access
            start, stop = max(first, access.start), min(last, access.stop)
            if start < stop and queued.address is not None:
                begin, end = start - access.start, stop - access.start
                now = ctypes.string_at(queued.address + begin, end - begin)
                if now != queued.before[begin:end]:
                    self._ledger.host_write(start, stop - start, slot=held.slot)
                    queued.before = queued.before[:begin] + now + queued.before[end:]

    def made_anew(self, name: str) -> None:
        """An object of that name is gone, or new: its slots are numbered from 0 again."""
        self._slots.pop(name, None)

    def _slot(self, name: str | None, address: int) -> int | None:
        """The number of a tensor's slot, in the order of first use; None where nobody can tell whose it is."""
        if name is None:
            return None
        slots = self._slots.setdefault(name, {})
        return slots.setdefault(address, len(slots)) if len(slots) < _SLOTS_MAX else slots.get(address)

    def _host_address(self, address: int) -> int | None:
        return address if self._device.type == "cpu" else host_address(address)


class _Noted:
    """A ticket whose `wait` the ledger hears of."""

    def __init__(self, ticket: Ticket, access: Access, ledger: Ledger) -> None:
        self._ticket, self._access, self._ledger = ticket, access, ledger
        self.content_only = ticket.content_only

    @property
    def freed_in_step(self) -> int | None:
        return self._ticket.freed_in_step

    def wait(self) -> Bytes | None:
        seen = self._ticket.wait()
        self._ledger.settled(self._access)
        return seen

    def release(self) -> None:
        self._ticket.release()


def _key(stream: Any) -> Hashable:
    """What the fences of a stream call it: a raw CUDA handle, or a virtual stream's name."""
    key: Hashable = getattr(stream, "cuda_stream", None)
    return stream.name if key is None else key
