"""The steps of one manager: where they end, and the fences that bound the readers launched in them."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable
from typing import Any

from staging.backend import Backend
from staging.errors import ConcurrentUseError, StagingError
from staging.fence import Fence, StepEnd


class Steps:
    """Counts steps and makes their ends. Step mode begins with the first `begin` or `end`; until then each
    lease ends on its own, fenced at once. The steps belong to the thread that began the first one."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._side: dict[Hashable, Fence] = {}  # the last fence of every stream passed to retire
        self._open: StepEnd | None = None  # None until step mode begins
        self._inside = False
        self._thread: int | None = None
        self.num_ended = 0

    @property
    def in_step_mode(self) -> bool:
        return self._open is not None

    def begin(self) -> None:
        """Enter a step that ends with `end`; raises StagingError inside another one."""
        if self._inside:
            raise StagingError("manager.step() inside another step of the same manager: end the outer one first")
        self._backend.refuse_capture()
        self._enter_step_mode()
        self._inside = True

    def end(self, streams: Iterable[Any], *, of_block: bool) -> StepEnd:
        """Close the open step behind the current stream, `streams` and the retired ones; open the next.

        A bad stream raises; then a block's step is closed without it, and any other stays open. While capturing
        it raises StagingError: then the step stays open, and its readers are fenced by the next end.
        """
        if self._inside and not of_block:
            raise StagingError("end_step() inside manager.step(): the block's end ends the step")
        self._inside = False
        self._backend.refuse_capture()
        ended = self._enter_step_mode()
        try:
            fences = self.fences(streams)
        except Exception:
            if of_block:
                self._close(ended, self.fences(()))
            raise
        return self._close(ended, fences)

    def lease_end(self) -> StepEnd:
        """The end of a lease that is replaced now: the open step's in step mode, else fenced at once, as a step
        of its own."""
        if self._open is not None:
            return self._open
        self.num_ended += 1
        return self.fence_now()

    def fence_now(self) -> StepEnd:
        """An end here and now, which is no step."""
        return StepEnd(self.num_ended).close(self.fences(()))

    def shut(self) -> StepEnd:
        """The end of all steps: the open one is closed with it."""
        return self.fence_now() if self._open is None else self._open.close(self.fences(()))

    def retire(self, stream: Any) -> None:
        """Let every later end wait for what was queued on `stream` up to here."""
        self._backend.refuse_capture(stream)
        fence = self._backend.fence(stream)
        self._side[fence.stream] = fence

    def fences(self, streams: Iterable[Any]) -> list[Fence]:
        """A new one on the current stream, and those of all streams retired so far, `streams` included, that are
        not done: a reader launched in one step may read a lease that ends in a later one."""
        for stream in streams:
            self.retire(stream)
        if not self._side:
            return [self._backend.fence()]
        for key, fence in tuple(self._side.items()):
            if fence.done():
                self._side.pop(key, None)
        return [self._backend.fence(), *tuple(self._side.values())]

    def _close(self, ended: StepEnd, fences: list[Fence]) -> StepEnd:
        self.num_ended += 1
        self._open = StepEnd(self.num_ended)
        return ended.close(fences)

    def _enter_step_mode(self) -> StepEnd:
        thread = threading.get_ident()
        if self._thread not in (None, thread):
            raise ConcurrentUseError("the manager's steps belong to the thread that began the first one")
        self._thread = thread
        if self._open is None:
            self._open = StepEnd(self.num_ended)
        return self._open
