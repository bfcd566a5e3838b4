"""One script, every backend: a world is a manager and late readers on its device."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is first imported

import staging
from staging.backend import Block, Probe
from staging.backends.sim import SimBackend, SimDevice

BACKENDS = ["cpu", "sim", "sim_twin", *(["cuda_uva", "cuda_copy"] if torch.cuda.is_available() else [])]
LATE = [name for name in BACKENDS if name != "cpu"]
"""Backends whose readers run after the call that launched them."""
IN_PLACE = [name for name in LATE if name not in ("sim_twin", "cuda_copy")]
"""Backends whose late readers see host memory as it is when they run."""

Read = Callable[[], np.ndarray]


class TwinSim(SimBackend):
    """A virtual device that cannot read host memory: every publish is a queued copy, as on cuda_copy."""

    name = "sim_twin"

    def probe(self) -> Probe:
        self.allocate(1)
        return Probe(self.name, True, "a double for tests")

    def allocate(self, nbytes: int, *, mapped: bool = True, pinned: bool = True) -> Block:
        return super().allocate(nbytes, mapped=False)


class World:
    """A manager, and readers that run as late as its device allows."""

    def __init__(self, backend: str, *, seed: int = 3, schedule: str = "late", **options: object) -> None:
        self.name = backend
        self.sim = SimDevice(seed=seed, schedule=schedule) if backend.startswith("sim") else None
        device = "cuda" if backend.startswith("cuda") else "cpu"
        chosen = {"sim": SimBackend, "sim_twin": TwinSim}[backend](self.sim) if self.sim else backend
        self.manager = staging.DeviceMemoryManager(device, backend=chosen, **options)
        self.device = self.manager.device

    def read(self, tensor: torch.Tensor, stream: object = None) -> Read:
        """Launch a reader of `tensor`; the function returned waits for all work and gives what it read."""
        if self.sim is not None:
            seen: list[torch.Tensor] = []
            self.sim.enqueue(lambda: seen.append(tensor.clone()), stream=stream)
            return lambda: self._after(lambda: seen[0])
        if self.device.type == "cuda":
            with torch.cuda.stream(stream or torch.cuda.current_stream()):
                torch.cuda._sleep(2_000_000)
                copy = tensor.clone() if tensor.dtype == torch.bool else _kernel_read(tensor)
            return lambda: self._after(lambda: copy)
        copy = tensor.clone()
        return lambda: _numpy(copy)

    def _after(self, result: Callable[[], torch.Tensor]) -> np.ndarray:
        self.settle()
        return _numpy(result())

    def settle(self) -> None:
        """Run everything that is queued."""
        if self.sim is not None:
            self.sim.synchronize()
        elif self.device.type == "cuda":
            torch.cuda.synchronize()

    def stream(self) -> object:
        """Another stream than the current one."""
        if self.sim is not None:
            return self.sim.stream("side")
        return torch.cuda.Stream() if self.device.type == "cuda" else None


def _kernel_read(tensor: torch.Tensor) -> torch.Tensor:
    words = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return torch.bitwise_or(tensor.view(words), 0).view(tensor.dtype)


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.cpu()
    return tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


@pytest.fixture(params=BACKENDS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A world of every backend there is."""
    world = World(request.param)
    yield world
    world.settle()
    world.manager.close()


@pytest.fixture
def make_world() -> Iterator[Callable[..., World]]:
    """Build worlds by name and manager options; closed after the test."""
    made: list[World] = []

    def make(backend: str, **options: object) -> World:
        made.append(World(backend, **options))
        return made[-1]

    yield make
    for world in made:
        world.settle()
        world.manager.close()
