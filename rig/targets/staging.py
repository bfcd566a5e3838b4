"""Our library, on a manager for the backend that is judged."""

from __future__ import annotations

from typing import Any

import torch

SUMMARY = "the library of this repository, with a DeviceMemoryManager for each backend"


def load(*, fault: str | None, device: torch.device) -> Any:
    """The module; it has no faults to choose from."""
    import staging

    if fault is not None:
        raise ValueError(f"target staging has no fault {fault!r}; see target faulty")
    return staging
