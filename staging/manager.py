"""The manager of one device's staging memory: it picks a backend once and decides when memory is free again."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from staging.accounting import Accounting
from staging.backend import Backend, Block
from staging.errors import ClosedError, DeviceLostError, MemoryLimitError, StagingError
from staging.fence import StepEnd, wait_all
from staging.policies import (
    Growth,
    Guard,
    OnLimit,
    check_depth,
    check_growth,
    check_guard,
    check_limit_bytes,
    check_on_limit,
    check_wait_timeout_s,
)
from staging.published import Publishable, Published
from staging.retired import RetiredMemory
from staging.selection import Choice, choose
from staging.steps import Steps


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
        on_limit: OnLimit = "raise",
        growth: Growth = "pow2",
    ) -> None:
        self.depth, self.guard = check_depth(depth), check_guard(guard)
        self.on_limit, self.growth = check_on_limit(on_limit), check_growth(growth)
        self.limit_bytes, self.wait_timeout_s = check_limit_bytes(limit_bytes), check_wait_timeout_s(wait_timeout_s)
        self._choice: Choice = choose(device, backend)
        self.backend: Backend = self._choice.backend
        self.device = self.backend.device
        self.accounting = Accounting()
        self._steps = Steps(self.backend)
        self._retired = RetiredMemory(self.backend, self.accounting)
        weakref.finalize(self, self._retired.orphan).atexit = False
        self.published = Published()
        self.held: dict[object, str] = {}  # the pools' names of slots that are held for graphs
        self.gate: list[object] = [None]  # empty once it cannot be used: what short ways look at
        os.register_at_fork(after_in_child=self.gate.clear)
        self._pid = os.getpid()
        self._closed = False
        self._warned = False
        self._lost: BaseException | None = None

    # -- steps and fences

    @contextmanager
    def step(self, *, streams: Iterable[Any] = ()) -> Iterator[DeviceMemoryManager]:
        """One step of the engine: what is published in it may be read until its end, by readers launched in it.

        Leaving it, also by an exception, fences the current stream and `streams`. Steps do not nest. From the first
        one on leases end only with a step, so end every one: in a step that never ends, pools only grow.
        """
        self.check()
        with self.device_work():
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
        try:
            ended = self._steps.end(streams, of_block=of_block)
            self._retired.sweep(lambda: ended)
        except RuntimeError as error:
            self.raise_if_lost(error)
            raise

    def retire(self, stream: Any) -> None:
        """Tell that readers of leased slots were launched on `stream` up to here: leases that end later wait for
        it as well as for the current stream."""
        self.check()
        with self.device_work():
            self._steps.retire(stream)

    def fence_readers(self, block: Block) -> None:
        """Mark the current stream and every retired one: `block` may be read by what is queued there up to here."""
        current, *retired = self._steps.fences(())
        block.used(current)
        for fence in retired:  # beside what its lease was told of the same stream, which may be later
            block.users["retired", fence.stream] = fence

    def lease_end(self, *, fenced: bool) -> StepEnd:
        """The end of a lease that is replaced now: the open step's in step mode, else an own one, fenced at once."""
        if not fenced and not self._steps.in_step_mode:
            return StepEnd(self._steps.num_ended).close(())
        return self._steps.lease_end()

    @property
    def current_step(self) -> int:
        """How many steps (outside step mode: leases) ended so far."""
        return self._steps.num_ended

    def publish(self, tensors: Iterable[Publishable] | None = None) -> None:
        """Publish the backed tensors given, by default all of this manager's: small ones of one kind together, by one
        comparison and one copy (if one of them changed, all of them move to the new slot), large ones one by one.
        What did not change keeps its slot. Raises ValueError for a tensor of another manager, publishing none.
        """
        self.refuse_capture()
        if tensors is None:
            self._publish_groups()
            for tensor in self.published.singles():
                tensor.copy_to_uva()
            return
        tensors = list(tensors)
        for position, tensor in enumerate(tensors):
            if not hasattr(tensor, "mark_dirty"):
                raise TypeError(f"tensors[{position}] is a {type(tensor).__name__}, not a UvaBackedTensor")
            if tensor.manager is not self:
                raise ValueError(f"tensors[{position}] belongs to another manager; publish it there")
        for tensor in tensors:
            tensor.copy_to_uva()

    def _publish_groups(self) -> None:
        try:
            for group in self.published.groups():
                group.publish()
        except RuntimeError as error:
            self.raise_if_lost(error)
            raise

    # -- memory

    def allocate(self, nbytes: int, *, mapped: bool = True, name: str) -> Block:
        """A block of host memory with its device view, within the budget, counted under `name`; raises
        MemoryLimitError, and StagingError while capturing a graph."""
        self.refuse_capture()
        pageable = self._over_limit(nbytes, name)
        with self.device_work():
            block = self.backend.allocate(nbytes, mapped=mapped and not pageable, pinned=not pageable)
        self.accounting.add(block, name)
        return block

    def allocate_target(self, nbytes: int, *, resident: bool, name: str) -> Block:
        """A block that device work writes: device memory, or where not `resident` mapped host memory, within the
        budget (at the limit, device memory stands in for pageable); raises as `allocate`."""
        self.refuse_capture()
        if not resident:
            resident = self._over_limit(nbytes, name)
        with self.device_work():
            block = self.backend.allocate_target(nbytes, resident=resident)
            block.used(self.backend.fence())  # of its zeroing
        self.accounting.add(block, name)
        return block

    def drop_with(self, owner: object, block: Block) -> weakref.finalize[[Block], Any]:
        """Retire `block` once `owner` is gone: free it behind a fence of the next publish or step end, and behind
        every fence it carries."""
        finalizer = weakref.finalize(owner, self._retired.drop, block)
        finalizer.atexit = False
        return finalizer

    def reclaim(self) -> None:
        """Free what is done; outside step mode fence what was dropped since. Every publish does this first."""
        self.check()
        if self._retired.has_any():
            with self.device_work():
                self._retired.sweep(None if self._steps.in_step_mode else self._steps.fence_now)

    def _over_limit(self, nbytes: int, name: str) -> bool:
        """Whether to go on with pageable memory; raises MemoryLimitError where the budget says so."""
        self.reclaim()
        rounded = self.backend.rounded(nbytes)
        if self.limit_bytes is None or self.accounting.host_nbytes + rounded <= self.limit_bytes:
            return False
        with self.device_work():
            self._retired.wait()
        if self.accounting.host_nbytes + rounded <= self.limit_bytes:
            return False
        text = (
            f"{nbytes} bytes more ({rounded} with rounding) for {name!r} would pass limit_bytes={self.limit_bytes}: "
            f"{self.accounting.host_nbytes} are in use, retired memory included"
        )
        if self.on_limit == "raise":
            raise MemoryLimitError(
                f"{text}; raise the limit, end the step if one is open, use growth='exact', or on_limit='pageable'"
            )
        if not self._warned:
            self._warned = True
            warnings.warn(f"{text}; going on with pageable memory and explicit copies", RuntimeWarning, stacklevel=4)
        return True

    # -- state

    def check(self) -> None:
        """Raise ClosedError or DeviceLostError where the manager cannot be used any more."""
        if self.gate:
            return
        if self._lost is not None:
            raise DeviceLostError(f"{self.device} was lost earlier: {self._lost}") from self._lost
        if self._closed:
            raise ClosedError(f"the manager of {self.device} was closed; build a new one")
        if os.getpid() != self._pid:
            raise ClosedError("the manager belongs to the parent of this forked process; build one after the fork")

    def refuse_capture(self) -> None:
        """`check`, and raise StagingError while the current stream records a graph."""
        self.check()
        try:
            self.backend.refuse_capture()
        except RuntimeError as error:
            self.raise_if_lost(error)
            raise

    @property
    def is_usable(self) -> bool:
        """Whether `check` passes."""
        return bool(self.gate)

    def raise_if_lost(self, error: BaseException) -> None:
        """Mark the manager broken where `error` says that the device is lost, and say so from now on."""
        if self._lost is None and self.backend.is_device_error(error):
            self._lost = error
            self.gate.clear()
            raise DeviceLostError(f"{self.device} is lost to this process: {error}") from error

    @contextmanager
    def device_work(self) -> Iterator[None]:
        """Calls of the backend and its fences outside an object's own method: a lost device is recognised."""
        try:
            yield
        except RuntimeError as error:
            self.raise_if_lost(error)
            raise

    def explain(self) -> str:
        """Why this backend: each one's proof, what was taken, and how it works here."""
        lines = [f"device {self.device}: backend {self.backend.name} ({self._choice.why})"]
        lines += [f"  {p.name}: {'proved' if p.ok else 'not taken'}: {p.reason}" for p in self._choice.probes]
        if self.backend.note():
            lines.append(f"  note: {self.backend.note()}")
        if self._warned:
            lines.append(f"  limit_bytes={self.limit_bytes} was reached: pageable memory is in use")
        return "\n".join(lines)

    def stats(self) -> dict[str, Any]:
        """Bytes requested, allocated, pinned and on the device, and slots: `_current`, `_peak`, `_total` of each;
        growths, waits, `wait_ns`, and `waste_bytes` that rounding costs: plain ints.

        `["names"][name]` holds what goes by that name, now: `allocated_bytes`, `pinned_bytes`, `device_bytes` and
        `slots`, and its `growths`, `waits` and `wait_ns` so far. The name is the one a constructor was given, else
        the class's; small backed tensors' common slots go by "UvaBackedTensor".
        """
        if self._closed:
            self._retired.sweep(lambda: StepEnd(-1).close(()))
        return self.accounting.snapshot()

    def close(self) -> None:
        """Wait for the fences, free retired memory and refuse further use; again is fine. Live views keep theirs.

        Never waits on a lost device. What still lives (pools, tensors) is freed as it is dropped. Raises
        StagingError, closing nothing, while a slot is held for graphs or a stream is capturing one.
        """
        if self._closed:
            return
        usable = self.is_usable
        if usable:
            self.refuse_capture()
            self._refuse_held()
        self._closed = True
        self.gate.clear()
        if usable:
            with self.device_work():
                end = self._steps.shut()
                wait_all(end.fences)
                self._retired.sweep(lambda: end)
                self._retired.wait()
        self._retired.orphan()  # what is dropped from here on is swept by whoever comes next

    def _refuse_held(self) -> None:
        names = sorted(set(self.held.copy().values()))
        if names:
            raise StagingError(
                f"slots of {', '.join(map(repr, names))} are held for graphs: call release() on what hold_for_graph() "
                "returned, once its graphs are replayed no more, then close()"
            )

    def __reduce__(self) -> NoReturn:
        raise TypeError("a DeviceMemoryManager belongs to its process and does not pickle; build one on the other side")
