"""A rank with nothing to do skips the event protocol in its dummy step, and its peer waits for that event for ever."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, ClassVar

from rig.incidents._steps import ALL, ROWS, pools, publish, steps
from rig.ops import Op

if TYPE_CHECKING:
    import torch

NUMBER = 4
SUMMARY = "an idle rank's dummy step records no event, and the busy rank hangs"
FIX = "a dummy step takes part in the protocol like any other"
THREADS = ("vllm#54269",)
KIND = "hang"
BACKENDS = ALL
DEADLINE_S = 1.0  # of the buggy one, whose list takes milliseconds; a second more is what the drive grants a call


def ops(rng: random.Random) -> list[Op]:
    """Two ranks, of which one is idle in every third step: it publishes nothing."""

    def each(number: int) -> list[Op]:
        return [*publish("rank0"), *publish("rank1", num_rows=ROWS if number % 3 else 0)]

    return steps(pools("rank0", "rank1"), each)


def buggy(device: torch.device) -> Any:
    return _module(device, dummies_record=False)


def fixed(device: torch.device) -> Any:
    return _module(device, dummies_record=True)


def _module(device: torch.device, *, dummies_record: bool) -> Any:
    import time

    import torch

    from rig.targets import unfenced

    class UvaBufferPool(unfenced.UvaBufferPool):
        ranks: ClassVar[list[Any]] = []

        def __init__(self, size: unfenced.Size, dtype: torch.dtype, max_concurrency: int | None = None) -> None:
            super().__init__(size, dtype, max_concurrency)
            self.num_events = 0
            self.ranks.append(self)

        def copy_to_uva(self, x: Any) -> torch.Tensor:
            while any(rank.num_events < self.num_events for rank in self.ranks):
                time.sleep(0.001)  # a peer's event of the step before is awaited
            self.num_events += dummies_record or len(torch.as_tensor(x)) > 0
            return super().copy_to_uva(x)

    return unfenced.module(device, UvaBufferPool)
