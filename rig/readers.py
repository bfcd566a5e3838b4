"""Readers: what the rig launches to see memory as a device would, late, without keeping that memory alive.

`AtOnce` reads when launched (backend cpu), `Late` when the virtual accelerator runs it (sim); `rig.device` has the
reader that runs as a kernel behind a stall. A view is what a target handed out; a ticket is one launched read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.multiprocessing.reductions import StorageWeakRef

Bytes = NDArray[np.uint8]
INTS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Ticket(Protocol):
    """One launched read. `late` says that it was still queued when later device or host work was issued."""

    content_only: bool

    def wait(self) -> Bytes | None:
        """The bytes it saw, or None if its memory was freed before it ran."""

    def release(self) -> None:
        """The bytes are not needed any more."""

    @property
    def freed_in_step(self) -> int | None:
        """The step in which the memory was found freed, where that is known."""


class Readers(Protocol):
    """Launches reads of one device."""

    def hold(self, tensor: torch.Tensor, *, resident: bool = False, ours: bool = False) -> Any:
        """A view of what the target handed out; it keeps the memory until it is dropped.

        `resident`: device work writes it in stream order. `ours`: made for the caller, who keeps it for its readers.
        """

    def launch(self, view: Any, num_rows: int | None, *, stream: str, first: int = 0) -> Ticket:
        """Queue a read of the view, or of its rows from `first` on, on a stream that is ordered after the main one.

        The main stream waits for readers of resident memory on another one, as an engine has to see to.
        """

    def stream(self, name: str) -> Any:
        """The stream of that name, as a target's `retire` takes it; None where there are no streams."""

    def flush(self, *, everything: bool) -> None:
        """Run the queued reads of resident memory (or all) before device work that bypasses the queue."""

    def poll(self, step: int) -> None:
        """Note which queued reads lost their memory up to this step."""

    def begin_step(self) -> None:
        """A new engine step begins."""


@dataclass(slots=True)
class HostView:
    """Memory by storage and layout; no tensor, since a view would keep its base."""

    storage: torch.UntypedStorage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    itemsize: int
    resident: bool
    ours: bool

    @classmethod
    def of(cls, tensor: torch.Tensor, *, resident: bool, ours: bool) -> HostView:
        offset, shape, stride = int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride()
        return cls(tensor.untyped_storage(), offset, shape, stride, tensor.element_size(), resident, ours)

    def rows(self, first: int, num_rows: int | None) -> tuple[int, tuple[int, ...]]:
        """Offset and shape of the rows from `first` on."""
        count = self.shape[0] - first if num_rows is None else num_rows
        return self.offset + first * self.stride[0], (count, *self.shape[1:])

    @property
    def owned_elsewhere(self) -> bool:
        """Whether anything but our views holds the storage: they share one Python object, which counts once."""
        return bool(torch._C._storage_Use_Count(self.storage._cdata) > 1)


class AtOnce:
    """The host is the device: a read happens when it is launched."""

    def hold(self, tensor: torch.Tensor, *, resident: bool = False, ours: bool = False) -> HostView:
        return HostView.of(tensor, resident=resident, ours=ours)

    def launch(self, view: HostView, num_rows: int | None, *, stream: str, first: int = 0) -> _Read:
        read = _Read(view, first, num_rows)
        read.run()
        return read

    def stream(self, name: str) -> None:
        return None

    def flush(self, *, everything: bool) -> None: ...

    def poll(self, step: int) -> None: ...

    def begin_step(self) -> None: ...


class Late:
    """Reads run on a SimDevice, over the memory itself, when its schedule lets them."""

    def __init__(self, sim: Any) -> None:
        self.sim = sim
        self._queued: list[_Read] = []

    def hold(self, tensor: torch.Tensor, *, resident: bool = False, ours: bool = False) -> HostView:
        return HostView.of(tensor, resident=resident, ours=ours)

    def launch(self, view: HostView, num_rows: int | None, *, stream: str, first: int = 0) -> _Read:
        read = _Read(view, first, num_rows)
        target = self.sim.stream(stream)
        if stream != "main":
            self.sim.order(self.sim.record(self.sim.stream("main")), stream=target)
        read.fence = self.sim.enqueue(read.run, stream=target)
        if stream != "main" and view.resident:
            self.sim.order(read.fence, stream=self.sim.stream("main"))
        self._queued.append(read)
        return read

    def stream(self, name: str) -> Any:
        return self.sim.stream(name)

    def flush(self, *, everything: bool) -> None:
        for read in self._queued:
            if everything or read.resident:
                read.run()

    def poll(self, step: int) -> None:
        for read in self._queued:
            read.poll(step)
        self._queued = [read for read in self._queued if not read.ran]

    def begin_step(self) -> None:
        self.sim.advance()


class _Read:
    """One read of host memory. It keeps the memory alive only if nobody but the rig does when it is launched."""

    def __init__(self, view: HostView, first: int, num_rows: int | None) -> None:
        self.offset, self.shape = view.rows(first, num_rows)
        self.stride, self.itemsize, self.resident = view.stride, view.itemsize, view.resident
        self.content_only = view.ours or not view.owned_elsewhere
        self._kept = view.storage if self.content_only else None
        self._weak = StorageWeakRef(view.storage)
        self._address = view.storage.data_ptr()
        self.fence: Any = None
        self.ran = False
        self.freed_in_step: int | None = None
        self._bytes: Bytes | None = None
        self._error: Exception | None = None

    @property
    def end(self) -> int:
        """The storage's byte behind the last one that is read."""
        if 0 in self.shape:
            return 0
        last = sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))
        return (self.offset + last + 1) * self.itemsize

    def run(self) -> None:
        """Read now, once; never raises, since it may run inside a target's call."""
        if self.ran:
            return
        self.ran = True
        try:
            storage = self._kept or torch.UntypedStorage._new_with_weak_ptr(self._weak.cdata)
            if storage is not None and storage.data_ptr() == self._address and self.end <= storage.nbytes():
                self._bytes = _copy_bytes(storage, self)
        except Exception as error:
            self._error = error
        self._kept = None

    def poll(self, step: int) -> None:
        if not self.ran and self._kept is None and self._weak.expired():
            self.ran, self.freed_in_step = True, step

    def wait(self) -> Bytes | None:
        if not self.ran and self.fence is not None:
            self.fence.wait()
        self.run()
        if self._error is not None:
            raise self._error
        return self._bytes

    def release(self) -> None:
        self._bytes = None


def _copy_bytes(storage: torch.UntypedStorage, read: _Read) -> Bytes:
    alias = torch.empty(0, dtype=INTS[read.itemsize])
    alias.set_(storage, read.offset, read.shape, read.stride)
    return alias.contiguous().numpy().reshape(-1).view(np.uint8).copy()
