"""A public incident as it was, such as incident:depth_one_short: what has to be caught."""

from __future__ import annotations

from typing import Any

import torch

from rig import registry

SUMMARY = "a module with the pattern of one public incident, e.g. incident:depth_one_short"
FAULTS_OF = "incidents"  # the folder whose files are what may stand after the colon


def load(*, fault: str | None, device: torch.device) -> Any:
    """The names of upstream's module with the incident in them."""
    if fault is None:
        raise ValueError("target incident needs a name, incident:NAME; see `rig list incidents`")
    return registry.load("incidents", fault).buggy(device)
