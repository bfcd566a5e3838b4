"""The kernels' work by torch's own operations, for CUDA systems without Triton."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from staging.backend import Block
from staging.elements import ElementWrites, placed
from staging.packing import PackedWrites


def scatter_by_torch(buffers: Sequence[torch.Tensor], writes: PackedWrites, targets: Sequence[torch.Tensor]) -> None:
    """One copy for each run; the arguments are those of `Backend.apply`."""
    for target, offset, buffer, source, count, _ in writes.columns():
        targets[target][offset : offset + count].copy_(buffers[buffer][source : source + count])


def scatter_elements_by_torch(writes: ElementWrites, targets: Sequence[Block]) -> None:
    """One indexed assignment for each target; places and values are copied to the device first."""
    addresses = [target.address for target in targets]
    for target, offsets, values in placed(writes, addresses):
        if len(offsets):
            device = targets[target].device
            bits = torch.from_numpy(values.view(f"i{values.itemsize}").copy())
            device.view(bits.dtype)[torch.from_numpy(offsets).to(device.device)] = bits.to(device.device)
