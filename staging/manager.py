"""The manager of one device's staging memory: it picks a backend once and decides when memory is free again."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NoReturn, Protocol

import torch

from staging.accounting import Accounting
from staging.backend import Backend, Block
from staging.errors import ClosedError, DeviceLostError, MemoryLimitError
from staging.fence import StepEnd, wait_all
from staging.retired import Readers, RetiredMemory
from staging.selection import Choice, choose
from staging.steps import Steps

Guard = Literal["wait", "raise", "grow", "trust"]
GUARDS = ("wait", "raise", "grow", "trust")


class Publishable(Protocol):
    """What `publish` takes: a tensor whose host side is the truth."""

    def copy_to_uva(self, n: int | None = None) -> torch.Tensor: ...


class DeviceMemoryManager:
    """Owns the staging memory of one device, its step fences, its budget and its statistics.

    `backend` is a name, a Backend, or "auto": the first of cuda_uva, cuda_copy and cpu that proves itself.
    `depth` is the default `max_concurrency` of its pools. `guard` says what a publish does when its next slot
    is still in use: "wait" (at most `wait_timeout_s`), "raise", "grow" (a fresh slot), or "trust" (nothing: the
    caller knows). `limit_bytes` bounds the host memory, retired memory included; at the limit `on_limit`
    "raise" raises MemoryLimitError, "pageable" goes on with pageable memory and explicit copies, with one warning.
    `growth` is "pow2", "exact" or a factor over 1.

    Threads: building one, `stats()` and `explain()` may be called from anywhere; its steps belong to one thread.
    Streams: fences go on the device's current stream; add others with `retire`. Raises BackendUnavailableError.
    """

    def __init__(
        self,
        device: torch.device | str | None = None,
        *,
        backend: str | Backend = "auto",
        depth: int | None = None,
        guard: Guard = "wait",
        wait_timeout_s: float | None = None,
        limit_bytes: int | None = None,
        on_limit: Literal["raise", "pageable"] = "raise",
        growth: str | float = "pow2",
    ) -> None:
        if guard not in GUARDS:
            raise ValueError(f"guard={guard!r}: choose one of {', '.join(GUARDS)}")
        if on_limit not in ("raise", "pageable"):
            raise ValueError(f"on_limit={on_limit!r}: choose 'raise' or 'pageable'")
        if depth is not None and depth < 1:
            raise ValueError(f"depth={depth}: a pool needs at least 1 slot")
        self._choice: Choice = choose(device, backend)
        self.backend: Backend = self._choice.backend
        self.device = self.backend.device
        self.depth, self.guard, self.wait_timeout_s = depth, guard, wait_timeout_s
        self.limit_bytes, self.on_limit = limit_bytes, on_limit
        self.growth = check_growth(growth)
        self.accounting = Accounting()
        self._steps = Steps(self.backend)
        self._retired = RetiredMemory(self.accounting)
        self._published: weakref.WeakSet[Publishable] = weakref.WeakSet()
        self._pid = os.getpid()
        self._closed = False
        self._warned = False
        self._lost: BaseException | None = None

    # -- steps and fences

    @contextmanager
    def step(self, *, streams: Iterable[Any] = ()) -> Iterator[DeviceMemoryManager]:
        """One step of the engine: what is published in it may be read until its end, by readers launched in it.

        Leaving it, also by an exception, fences the current stream and `streams`. Steps do not nest.
        """
        self.check()
        self._steps.begin()
        try:
            yield self
        finally:
            self._end(streams, of_block=True)

    def end_step(self, *, streams: Iterable[Any] = ()) -> None:
        """End the step that is open and open the next: one fence on the current stream (and each of `streams`)
        for every lease that ended in it. Work after it belongs to the next step."""
        self.check()
        self._end(streams, of_block=False)

    def _end(self, streams: Iterable[Any], *, of_block: bool) -> None:
        ended = self._steps.end(streams, of_block=of_block)
        self._retired.sweep(lambda: ended)

    def retire(self, stream: Any) -> None:
        """Tell that readers of leased slots were launched on `stream` up to here: leases that end later wait for
        it as well as for the current stream."""
        self.check()
        self._steps.retire(stream)

    def lease_end(self) -> StepEnd:
        """The end of a lease that is replaced now: the open step's in step mode, else fenced at once."""
        return self._steps.lease_end()

    @property
    def current_step(self) -> int:
        """How many steps (outside step mode: leases) ended so far."""
        return self._steps.num_ended

    def publish(self, tensors: Iterable[Publishable] | None = None) -> None:
        """Publish the backed tensors given, by default all of this manager's; unchanged ones keep their slot."""
        self.check()
        for tensor in tuple(self._published if tensors is None else tensors):
            tensor.copy_to_uva()

    def register(self, tensor: Publishable) -> None:
        """Let `publish()` include `tensor` for as long as it lives."""
        self._published.add(tensor)

    # -- memory

    def allocate(self, nbytes: int, *, requested: int, mapped: bool = True) -> Block:
        """A block within the budget; raises MemoryLimitError. Give it back with `drop`."""
        self.before_publish()
        pinned = True
        if self.limit_bytes is not None and not self._fits(nbytes):
            self._retired.wait()
            if not self._fits(nbytes):
                self._at_limit(nbytes)
                mapped = pinned = False
        try:
            block = self.backend.allocate(nbytes, mapped=mapped, pinned=pinned)
        except RuntimeError as error:
            self.raise_if_lost(error)
            raise
        block.requested = requested
        self.accounting.add(block)
        return block

    def allocate_target(self, nbytes: int, *, resident: bool) -> Block:
        """A block that device work writes; where `resident` it is device memory, without a host side."""
        self.check()
        if not resident and not self._fits(nbytes):
            self._retired.wait()
            resident = not self._fits(nbytes)
        block = self.backend.allocate_target(nbytes, resident=resident)
        block.requested = block.nbytes
        self.accounting.add(block)
        return block

    def drop(self, block: Block, readers: Readers) -> None:
        """Retire a block: free it once a fence of the next publish or step end, and `readers`, are done.

        Only appends to a queue, so finalizers may call it from any thread.
        """
        self._retired.drop(block, readers)

    def before_publish(self) -> None:
        """What each publish does first: free what is done, and outside step mode fence what was dropped since."""
        self.check()
        if len(self._retired):
            self._retired.sweep(None if self._steps.in_step_mode else self._steps.fence_now)

    def _fits(self, nbytes: int) -> bool:
        used = max(self.accounting.allocated.current, self.accounting.pinned.current)
        return self.limit_bytes is None or used + self.backend.rounded(nbytes) <= self.limit_bytes

    def _at_limit(self, nbytes: int) -> None:
        used = max(self.accounting.allocated.current, self.accounting.pinned.current)
        text = (
            f"{nbytes} bytes more ({self.backend.rounded(nbytes)} with rounding) would pass limit_bytes="
            f"{self.limit_bytes}: {used} are in use, retired memory included"
        )
        if self.on_limit == "raise":
            raise MemoryLimitError(f"{text}; raise the limit, use growth='exact', or on_limit='pageable'")
        if not self._warned:
            self._warned = True
            warnings.warn(f"{text}; going on with pageable memory and explicit copies", RuntimeWarning, stacklevel=4)

    # -- state

    def check(self) -> None:
        """Raise ClosedError or DeviceLostError where the manager cannot be used any more."""
        if self._lost is not None:
            raise DeviceLostError(f"{self.device} was lost earlier: {self._lost}") from self._lost
        if self._closed:
            raise ClosedError(f"the manager of {self.device} was closed; build a new one")
        if os.getpid() != self._pid:
            raise ClosedError("the manager belongs to the parent of this forked process; build one after the fork")

    def raise_if_lost(self, error: BaseException) -> None:
        """Mark the manager broken where `error` says that the device is lost, and say so from now on."""
        if self.backend.is_device_error(error):
            self._lost = error
            raise DeviceLostError(f"{self.device} is lost to this process: {error}") from error

    def explain(self) -> str:
        """Why this backend: each one's proof, what was taken, and how it works here."""
        lines = [f"device {self.device}: backend {self.backend.name} ({self._choice.why})"]
        lines += [f"  {p.name}: {'proved' if p.ok else 'not taken'}: {p.reason}" for p in self._choice.probes]
        if self.backend.note():
            lines.append(f"  note: {self.backend.note()}")
        if self._warned:
            lines.append(f"  limit_bytes={self.limit_bytes} was reached: pageable memory is in use")
        return "\n".join(lines)

    def stats(self) -> dict[str, int]:
        """Bytes requested, allocated, pinned and on the device, and slots: `_current`, `_peak`, `_total` of each;
        growths, waits, `wait_ns`, and `waste_bytes` that rounding costs."""
        return self.accounting.snapshot()

    def close(self) -> None:
        """Wait for the fences, free retired memory and refuse further use; again is fine. Live views keep theirs.

        Never waits on a lost device. What still lives (pools, tensors) is freed as it is dropped.
        """
        if self._closed:
            return
        if self._lost is None and os.getpid() == self._pid:
            end = self._steps.fence_now()
            wait_all(end.fences)
            self._retired.sweep(lambda: end)
            self._retired.wait()
            self._retired.close()
        self._closed = True

    def __reduce__(self) -> NoReturn:
        raise TypeError("a DeviceMemoryManager belongs to its process and does not pickle; build one on the other side")


def check_growth(growth: str | float) -> str | float:
    """`growth` if it is a policy: "pow2", "exact" or a factor over 1; raises ValueError."""
    if growth in ("pow2", "exact"):
        return growth
    if isinstance(growth, (int, float)) and not isinstance(growth, bool) and growth > 1:
        return growth
    raise ValueError(f"growth={growth!r}: choose 'pow2', 'exact' or a factor over 1")
