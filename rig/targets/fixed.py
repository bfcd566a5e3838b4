"""A public incident after its fix, such as fixed:depth_one_short: the clean twin of target incident."""

from __future__ import annotations

from typing import Any

import torch

from rig import registry

SUMMARY = "a module with the fix of one public incident, e.g. fixed:depth_one_short"
FAULTS_OF = "incidents"  # the folder whose files are what may stand after the colon


def load(*, fault: str | None, device: torch.device) -> Any:
    """The names of upstream's module with the fix in them."""
    if fault is None:
        raise ValueError("target fixed needs a name, fixed:NAME; see `rig list incidents`")
    return registry.load("incidents", fault).fixed(device)
