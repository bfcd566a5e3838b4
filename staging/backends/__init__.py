"""The backends, one file each: the folder's listing is the list, and a file's stem its public name."""

from __future__ import annotations

import importlib
from pathlib import Path

import torch

from staging.backend import Backend, Probe
from staging.errors import StagingError

PREFERENCE = ("cuda_uva", "cuda_copy", "cpu")
"""What `auto` tries, in this order; `sim` is only ever asked for by name."""


def names() -> list[str]:
    """Every backend there is."""
    return sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))


def create(name: str, device: torch.device) -> Backend:
    """The backend `name` for `device`; raises ValueError for a device it cannot serve."""
    backend: Backend = importlib.import_module(f"staging.backends.{name}").create(device)
    return backend


def probe(name: str, device: torch.device) -> tuple[Probe, Backend | None]:
    """Build and prove one backend; the backend is None where it does not serve `device`. Raises StagingError while
    a stream is capturing a graph."""
    try:
        backend = create(name, device)
    except StagingError:
        raise  # no fault of the backend: a stream is capturing
    except (ValueError, RuntimeError, ImportError) as error:
        return Probe(name, False, str(error)), None
    result = backend.probe()
    return result, backend if result.ok else None


def probe_all(device: torch.device | str) -> list[Probe]:
    """What each backend's proof says on `device`, in the order of their names."""
    return [probe(name, torch.device(device))[0] for name in names()]
