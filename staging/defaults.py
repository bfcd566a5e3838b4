"""The defaults of a process: one manager per device, and the depth of pools that name none."""

from __future__ import annotations

import threading

import torch

from staging.dtypes import whole
from staging.manager import DeviceMemoryManager

_lock = threading.Lock()
_managers: dict[str, DeviceMemoryManager] = {}
_depth = 2
_CHOSEN, _ANY = "set by set_default_manager", "of no device in particular"


def set_default_max_concurrency(n: int) -> None:
    """Let pools built from now on have max(2, n) slots, where neither they nor their manager name a depth.

    It must be at least the number of steps in flight. Raises TypeError for no integer.
    """
    global _depth
    _depth = max(2, whole(n, "n"))


def depth_of(max_concurrency: int | None, manager: DeviceMemoryManager) -> int:
    """The depth of a pool: its argument, else its manager's, else the default; raises ValueError below 1."""
    if max_concurrency is not None:
        if whole(max_concurrency, "max_concurrency") < 1:
            raise ValueError(f"max_concurrency={max_concurrency}: a pool needs at least 1 slot")
        return whole(max_concurrency, "max_concurrency")
    return _depth if manager.depth is None else manager.depth


def default_manager(device: torch.device | str | None = None) -> DeviceMemoryManager:
    """The process's manager of `device`, built when first asked for.

    None is the current CUDA device if a CUDA backend proves itself there, else the CPU. Thread-safe.
    """
    with _lock:
        any_device = f"{_ANY}, at {_key(torch.device('cuda'))}"
        keys = [_CHOSEN, any_device] if device is None else [_key(torch.device(device))]
        for key in keys:
            manager = _managers.get(key)
            if manager is not None and manager.is_usable:  # neither closed nor of the process we were forked from
                return manager
        built = DeviceMemoryManager(device)
        manager = _managers.get(_key(built.device))
        if manager is None or not manager.is_usable:
            manager = _managers[_key(built.device)] = built
        if device is None:
            _managers[any_device] = manager
        return manager


def set_default_manager(manager: DeviceMemoryManager) -> None:
    """Let constructors without `manager=` use this one on its device, and where they name no device.

    Raises TypeError for no manager, ClosedError for a closed one.
    """
    _check_manager(manager)
    with _lock:
        _managers[_key(manager.device)] = manager
        _managers[_CHOSEN] = manager


def manager_for(device: torch.device | str | None, manager: DeviceMemoryManager | None) -> DeviceMemoryManager:
    """`manager` where given (open, and of `device`), else the default one of `device`."""
    if manager is None:
        return default_manager(device)
    _check_manager(manager)
    if device is not None and _key(torch.device(device)) != _key(manager.device):
        raise ValueError(f"device {device} was asked for, but the manager given serves {manager.device}")
    return manager


def _check_manager(manager: DeviceMemoryManager) -> None:
    if not isinstance(manager, DeviceMemoryManager):
        raise TypeError(f"manager={manager!r} is no DeviceMemoryManager")
    manager.check()


def _key(device: torch.device) -> str:
    if device.type == "cpu":
        return "cpu"
    if str(device) == "cuda":
        from staging.backends._cuda import current_device

        return f"cuda:{current_device()}"
    return str(device)
