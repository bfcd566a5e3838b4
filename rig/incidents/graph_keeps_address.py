"""A captured CUDA graph keeps the address of a slot; the pool publishes to another one, and replays read the old."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from rig.incidents._steps import pools, publish, steps
from rig.ops import Op

if TYPE_CHECKING:
    import torch

NUMBER = 17
SUMMARY = "a captured CUDA graph holds the address of a slot that rotates or grows"
FIX = "the graph reads a slot that is taken out of rotation, and publishes go to its address: pool.hold_for_graph()"
THREADS = ("onnxruntime#32121",)
KIND = "stale_alias"
BACKENDS = ("cuda_uva", "cuda_copy")


def ops(rng: random.Random) -> list[Op]:
    """Without graphs there is nothing wrong with either."""
    return steps(pools("table"), lambda number: publish("table"))


def check(module: Any, device: torch.device) -> str | None:
    """Capture a kernel that reads what was published, publish again and again, and replay each time."""
    import torch

    from rig.device import captured

    pool = module.UvaBufferPool(8, torch.int32, 2)
    tensor = pool.copy_to_uva(torch.full((8,), 1, dtype=torch.int32))
    held = pool.hold_for_graph() if hasattr(pool, "hold_for_graph") else None
    read, republish = (tensor, pool.copy_to_uva) if held is None else (held.tensor[:8], held.publish)
    seen = torch.zeros(8, dtype=torch.int32, device=device)
    replay = captured(device, lambda: torch.bitwise_or(read, 0, out=seen))
    told = None
    for number in (2, 3, 4):
        republish(torch.full((8,), number, dtype=torch.int32))
        replay()
        if seen.tolist() != [number] * 8 and told is None:
            told = f"a replay after publish {number} read {seen.tolist()}"
    if held is not None:
        held.release()
    return told


def buggy(device: torch.device) -> Any:
    from rig.targets import unfenced

    return unfenced.module(device)  # there is nothing that a graph could hold on to


def fixed(device: torch.device) -> Any:
    import staging

    return staging
