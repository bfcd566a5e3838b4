"""One-off transfers from the host to the device, without waiting."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from staging.buffer import UvaBuffer
from staging.defaults import manager_for
from staging.dtypes import check_out
from staging.exact import exact
from staging.manager import DeviceMemoryManager


def async_tensor_h2d(
    data: Any,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
    *,
    manager: DeviceMemoryManager | None = None,
) -> torch.Tensor:
    """Copy a list, ndarray or CPU tensor to the device on the current stream; the host does not wait.

    `dtype` defaults to `out`'s, else the data's own (for a list, what torch.tensor would take). The result
    never aliases `data`, which may be changed at once. Converts exactly (see staging.exact). Raises ValueError
    where `out` has another shape, dtype or device, or is expanded.
    """
    manager = manager_for(out.device if device is None and isinstance(out, torch.Tensor) else device, manager)
    if isinstance(data, Iterable) and not hasattr(data, "__len__"):
        data = list(data)
    if dtype is None:
        dtype = out.dtype if isinstance(out, torch.Tensor) else _own_dtype(data)
    array = exact(data, dtype)
    manager.refuse_capture()
    if out is None:
        out = torch.empty(array.shape, dtype=dtype, device=manager.device)
    else:
        check_out(out, array.shape, dtype, manager.device)
    if array.size:
        source = UvaBuffer(
            array.size, dtype, name="async_tensor_h2d", manager=manager
        )  # dropped on return: freed behind the copy's fence
        source.np[...] = array.reshape(-1)
        with manager.device_work():
            try:
                manager.backend.copy(source.uva().view(array.shape), out)
            finally:
                source.block.used(manager.backend.fence())
    return out


def _own_dtype(data: Any) -> torch.dtype:
    if isinstance(data, torch.Tensor):
        return data.dtype
    if isinstance(data, np.ndarray):
        return torch.from_numpy(np.empty(0, data.dtype.newbyteorder("="))).dtype
    try:
        kind = np.asarray(data).dtype.kind
    except ValueError:
        kind = "O"  # ragged: the conversion says so
    return {"b": torch.bool, "f": torch.get_default_dtype()}.get(kind, torch.int64)
