"""Which backend serves a device: the first that proves itself, never a flag believed."""

from __future__ import annotations

from typing import NamedTuple

import torch

from staging import backends
from staging.backend import Backend, Probe
from staging.errors import BackendUnavailableError


class Choice(NamedTuple):
    """A backend, why it was taken, and what each one tried said of itself."""

    backend: Backend
    why: str
    probes: list[Probe]


def choose(device: torch.device | str | None, backend: str | Backend) -> Choice:
    """The backend for `device`; None is the current CUDA device if a CUDA backend proves itself there, else CPU.

    Raises BackendUnavailableError, with every probe's reason, rather than fall back from a device asked for.
    """
    asked = None if device is None else torch.device(device)
    if isinstance(backend, Backend):
        if asked is not None and asked != backend.device and str(asked) not in ("cuda", "cpu:0"):
            raise ValueError(f"device {asked} was asked for, but the backend given serves {backend.device}")
        backend.refuse_capture()
        given = backend.probe()
        if not given.ok:
            raise BackendUnavailableError(f"the backend given did not prove itself: {given.name}: {given.reason}")
        return Choice(backend, "given by the caller", [given])
    if backend != "auto" and backend not in backends.names():
        raise ValueError(f"backend={backend!r} is unknown; choose one of: auto, {', '.join(backends.names())}")
    tried: list[Probe] = []
    for name in backends.PREFERENCE if backend == "auto" else (backend,):
        probe, proved = backends.probe(name, _device_for(name, asked))
        tried.append(probe)
        if proved is not None:
            why = "asked for by name" if backend != "auto" else "the first that proved itself"
            return Choice(proved, why, tried)
    reasons = "\n".join(f"  {probe.name}: {probe.reason}" for probe in tried)
    raise BackendUnavailableError(f"no backend proved itself on device {device or 'any'}:\n{reasons}")


def _device_for(name: str, asked: torch.device | None) -> torch.device:
    if asked is not None:
        return asked
    return torch.device("cuda" if name.startswith("cuda") else "cpu")
