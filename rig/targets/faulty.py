"""Our library with one fault at a time, each as small as it can be: what the controls must catch."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

SUMMARY = "the library with one planted fault, e.g. faulty:unfenced_reuse"

FAULTS: dict[str, str] = {
    "unfenced_reuse": "a slot is written again while its readers are queued",
    "early_free": "growth frees the old slot at once, under queued readers",
    "stale_alias": "what a pool hands out is a snapshot of the slot's first contents",
    "off_by_one": "a staged write lands one element too far",
    "lost_last_chunk": "the last chunk of a write of more than 1024 elements is not written",
    "first_writer_wins": "of overlapping staged writes the first one wins",
}


def load(*, fault: str | None, device: torch.device) -> Any:
    """The library's names with the one fault in place."""
    import staging

    if fault not in FAULTS:
        raise ValueError(f"target faulty needs a fault, faulty:NAME; choose one of {', '.join(FAULTS)}")
    names = {name: getattr(staging, name) for name in staging.__all__}
    plant: Callable[[Any], dict[str, Any]] = globals()[f"_{fault}"]
    return SimpleNamespace(**names | plant(staging))


def _unfenced_reuse(staging: Any) -> dict[str, Any]:
    class UvaBufferPool(staging.UvaBufferPool):  # type: ignore[misc]
        def __init__(
            self, size: Any, dtype: Any, depth: int | None = None, *, guard: Any = None, manager: Any = None
        ) -> None:
            super().__init__(size, dtype, depth, guard="trust", manager=manager)

    return {"UvaBufferPool": UvaBufferPool}


def _early_free(staging: Any) -> dict[str, Any]:
    from staging.slots import Slot, SlotRing

    class Ring(SlotRing):
        def _guarded(self, slot: Slot, num_rows: int) -> Slot:
            return slot if num_rows > slot.num_rows else super()._guarded(slot, num_rows)

        def _grow(self, slot: Slot, num_rows: int) -> None:
            slot.buffer._finalizer.detach()  # so the memory goes with the object, not after its readers
            super()._grow(slot, num_rows)

    class UvaBufferPool(staging.UvaBufferPool):  # type: ignore[misc]
        def __init__(self, *args: Any, **keywords: Any) -> None:
            super().__init__(*args, **keywords)
            self._ring.__class__ = Ring

    return {"UvaBufferPool": UvaBufferPool}


def _stale_alias(staging: Any) -> dict[str, Any]:
    class UvaBufferPool(staging.UvaBufferPool):  # type: ignore[misc]
        def copy_to_uva(self, x: Any) -> torch.Tensor:
            live = super().copy_to_uva(x)
            buffer = self.current.buffer
            if not hasattr(buffer, "snapshot"):
                buffer.snapshot = buffer.uva().clone()
            snapshot: torch.Tensor = buffer.snapshot[: len(live)]
            return snapshot

    return {"UvaBufferPool": UvaBufferPool}


def _off_by_one(staging: Any) -> dict[str, Any]:
    class StagedWriteTensor(staging.StagedWriteTensor):  # type: ignore[misc]
        def stage_write(self, index: int, start: int, x: Any) -> None:
            room = self.shape[-1] - (start if len(self.shape) == 2 else index + start) - len(x)
            super().stage_write(index, start + min(1, room), x)

    return {"StagedWriteTensor": StagedWriteTensor}


def _lost_last_chunk(staging: Any) -> dict[str, Any]:
    class StagedWriteTensor(staging.StagedWriteTensor):  # type: ignore[misc]
        def stage_write(self, index: int, start: int, x: Any) -> None:
            super().stage_write(index, start, x[: (len(x) - 1) // 1024 * 1024] if len(x) > 1024 else x)

    return {"StagedWriteTensor": StagedWriteTensor}


def _first_writer_wins(staging: Any) -> dict[str, Any]:
    class StagedWriteTensor(staging.StagedWriteTensor):  # type: ignore[misc]
        def __init__(self, *args: Any, **keywords: Any) -> None:
            super().__init__(*args, **keywords)
            self._held: list[tuple[int, int, Any]] = []

        def stage_write(self, index: int, start: int, x: Any) -> None:
            self._held.append((index, start, list(x)))

        def stage_write_elem(self, index: int, x: Any) -> None:
            self._held.append((index, 0, [x]))

        def apply_write(self) -> None:
            while self._held:
                super().stage_write(*self._held.pop())
            super().apply_write()

        def clear_staged_writes(self) -> None:
            self._held.clear()

    return {"StagedWriteTensor": StagedWriteTensor}
