"""A backend of our library that tells a ledger what it does: writes, device work, fences, and who waited for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from rig.ledger import Ledger
from rig.ledger_edges import Token
from rig.ledger_readers import LedgerReaders
from staging.backend import Backend, Block
from staging.elements import ElementWrites
from staging.fence import Fence
from staging.packing import PackedWrites

Span = tuple[int, int]
"""Address and bytes."""


class _Due(NamedTuple):
    """Device work that a call in progress is about to queue."""

    reads: list[Span]
    writes: list[Span]
    what: str


def watched(backend: Backend, ledger: Ledger, readers: LedgerReaders) -> Backend:
    """`backend` itself, from now on of a class that also tells the ledger. Give it to one manager only.

    It is the same object, since a backend calls its own `fence` and `order` too, and the blocks carry what they return.
    """
    kind = type(backend)
    backend.__class__ = type(f"Watched{kind.__name__}", (_Telling, kind), {})
    backend._ledger, backend._readers, backend._due = ledger, readers, []  # type: ignore[attr-defined]
    backend._is_late = kind.name != "cpu"  # type: ignore[attr-defined]
    return backend


class LedgerFence:
    """A fence of the backend. That it is passed is an edge once the host is told so, and not before."""

    __slots__ = ("_ledger", "_told", "fence", "stream", "token")

    def __init__(self, fence: Fence, token: Token, ledger: Ledger) -> None:
        self.fence, self.stream, self.token = fence, fence.stream, token
        self._ledger, self._told = ledger, False

    def done(self) -> bool:
        return self._note(self.fence.done())

    def wait(self, timeout_s: float | None = None) -> bool:
        return self._note(self.fence.wait(timeout_s))

    def _note(self, is_passed: bool) -> bool:
        if is_passed and not self._told:
            self._told = True
            self._ledger.passed(self.token)
        return is_passed


class _Telling(Backend):
    """Goes in front of a backend's class. What is not overridden here makes no edge and touches no slot."""

    _ledger: Ledger
    _readers: LedgerReaders
    _is_late: bool  # whether device work runs after the call that queues it
    _due: list[_Due]  # by the calls in progress, innermost last

    @property
    def _own(self) -> Any:
        return super()

    # -- memory

    def allocate(self, nbytes: int, *, mapped: bool = True, pinned: bool = True) -> Block:
        block: Block = self._own.allocate(nbytes, mapped=mapped, pinned=pinned)
        self._readers.allocated(block.host, block.device)
        if block.mapped:
            self._readers.blocks.add(block.address)
        return block

    def allocate_target(self, nbytes: int, *, resident: bool = True) -> Block:
        block: Block = self._own.allocate_target(nbytes, resident=resident)
        self._readers.allocated(block.device)
        return block

    # -- accesses

    def publish(self, block: Block, start: int, stop: int) -> None:
        host, twin = ((part.data_ptr() + start, stop - start) for part in (block.host, block.device))
        if start < stop:  # the host has just written what it publishes; nothing was asked or waited for in between
            self._ledger.host_write(*host)
        with self._queueing([], []) if block.mapped or start >= stop else self._queueing([host], [twin], "copy"):
            self._own.publish(block, start, stop)
        self._take_over(block)

    def copy(self, source: torch.Tensor, out: torch.Tensor) -> None:
        with self._queueing([_span(source)], [_span(out)], "copy"):
            self._own.copy(source, out)

    def move(self, source: Block, target: Block, start: int, nbytes: int) -> None:
        with self._queueing([(source.address, nbytes)], [(target.address + start, nbytes)], "copy"):
            self._own.move(source, target, start, nbytes)

    def apply(self, buffers: Sequence[torch.Tensor], writes: PackedWrites, targets: Sequence[torch.Tensor]) -> None:
        with self._queueing(map(_span, buffers), map(_span, targets), "apply"):
            self._own.apply(buffers, writes, targets)

    def apply_elements(self, block: Block, writes: ElementWrites, targets: Sequence[Block]) -> None:
        if block.mapped:  # else its publish tells
            self._ledger.host_write(*_span(block.host))
        with self._queueing([_span(block.device)], [_span(target.device) for target in targets], "apply"):
            self._own.apply_elements(block, writes, targets)
        for used in (block, *targets):
            self._take_over(used)

    # -- edges

    def fence(self, stream: Any = None) -> Fence:
        self._queue()
        return self._told(self._own.fence(stream))

    def order(self, fence: Fence) -> None:
        if isinstance(fence, LedgerFence):
            self._own.order(fence.fence)
            self._ledger.order(fence.token, stream=self._stream())
        else:
            self._own.order(fence)

    def _told(self, fence: Fence) -> LedgerFence:
        return LedgerFence(fence, self._ledger.fence(self._readers.name_of(fence.stream)), self._ledger)

    def _take_over(self, block: Block) -> None:
        """Fences that the backend made by itself, as part of a launch, become ones that tell."""
        if block.copied is not None and not isinstance(block.copied, LedgerFence):
            block.copied = self._told(block.copied)
        for stream, fence in block.users.items():
            if not isinstance(fence, LedgerFence):
                block.users[stream] = self._told(fence)

    @contextmanager
    def _queueing(self, reads: Iterable[Span], writes: Iterable[Span], what: str = "") -> Iterator[None]:
        """The call within queues device work, behind the waits and in front of the fence that it makes itself."""
        self._due.append(_Due(list(reads), list(writes), what))
        try:
            yield
        finally:
            self._queue()
            self._due.pop()

    def _queue(self) -> None:
        due = self._due[-1] if self._due else None
        if due is None or not self._is_late:
            return
        for span in due.reads:
            self._ledger.enqueue_read(self._stream(), *span, what=due.what)
        for span in due.writes:
            self._ledger.enqueue_write(self._stream(), *span, what=due.what)
        due.reads.clear()
        due.writes.clear()

    def _stream(self) -> str:
        """The current stream's name."""
        sim = getattr(self, "sim", None)
        return self._readers.name_of(self._readers.main_key() if sim is None else sim.current_stream.name)


def _span(memory: torch.Tensor) -> Span:
    return memory.data_ptr(), memory.nbytes
