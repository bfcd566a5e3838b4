"""The rig's only torch.cuda: readers as kernels behind a stall, marks and busy work on streams, machine facts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch

from rig.poison import Poison
from rig.readers import INTS, Bytes

_PORTABLE, _MAPPED = 1, 2  # cudaHostRegister's flags
_DOUBLINGS_MAX = 3  # a target that waits for the device itself makes any stall look too short


class Stalled:
    """Readers are kernels on the current stream. The first of each step waits behind a stall, so that later steps are
    published while earlier ones are still queued; the stall doubles while it is seen to be too short."""

    def __init__(self, device: torch.device, *, stall_us: int) -> None:
        self.device, self.stall_us, self._stall_us_max = device, stall_us, stall_us << _DOUBLINGS_MAX
        self._streams: dict[str, torch.cuda.Stream] = {}
        self._buffers: dict[int, list[_Buffers]] = defaultdict(list)
        self._poison = Poison() if stall_us else None
        self._stalled = self._watched = False
        self._last: _Kernel | None = None

    def hold(self, tensor: torch.Tensor, *, resident: bool = False, ours: bool = False) -> _View:
        if self._poison is not None and not (resident or ours):
            self._poison.note(tensor)
        return _View(tensor, resident=resident, ours=ours)

    def launch(self, view: _View, num_rows: int | None, *, stream: str, first: int = 0) -> _Kernel:
        with torch.cuda.device(self.device):
            main = torch.cuda.current_stream()
            target = main if stream == "main" else self.stream(stream)
            if self.stall_us and not self._stalled:
                self._stalled = True
                torch.cuda._sleep(int(self.stall_us * cycles_per_us(self.device)))
            if target is not main:
                target.wait_stream(main)
            with torch.cuda.stream(target):
                rows = view.tensor[first:] if num_rows is None else view.tensor[first : first + num_rows]
                kernel = _Kernel(rows, self._buffers, keep=view.ours and target is not main)
            if target is not main and view.resident:
                main.wait_stream(target)
        self._last = kernel
        return kernel

    def stream(self, name: str) -> torch.cuda.Stream:
        if name == "main":
            return torch.cuda.current_stream(self.device)
        if name not in self._streams:
            self._streams[name] = torch.cuda.Stream(self.device)
        return self._streams[name]

    def flush(self, *, everything: bool) -> None:
        """Nothing: on a GPU the device work of every target is queued behind the readers."""

    def poll(self, step: int) -> None:
        """After the target's call: poison what it may have freed, and see whether the stall still holds."""
        if self._poison is not None:
            self._poison.spread()
        if self.stall_us and not self._watched and self._last is not None:
            self._watched = True
            if not self._last.waited and self._last.event.query():
                self.stall_us = min(self._stall_us_max, 2 * self.stall_us)

    def begin_step(self) -> None:
        self._stalled = self._watched = False


class _View:
    """What was handed out, kept as long as the view is, as an engine keeps it until its readers are launched."""

    def __init__(self, tensor: torch.Tensor, *, resident: bool, ours: bool) -> None:
        self.tensor, self.resident, self.ours = tensor, resident, ours


class _Kernel:
    """One read: a kernel copies the words as they are when it runs, a copy brings them to the host."""

    content_only = False
    freed_in_step: int | None = None

    def __init__(self, rows: torch.Tensor, free: dict[int, list[_Buffers]], *, keep: bool) -> None:
        words = rows.view(INTS[rows.element_size()])
        self._nbytes = words.nbytes
        capacity = max(4096, 1 << (words.nbytes - 1).bit_length())
        self._free = free[capacity]
        self._buffers = self._free.pop() if self._free else _Buffers(capacity, words.device)
        self._kept = words if keep else None
        self.waited = False
        if self._nbytes:
            seen = self._buffers.device[: self._nbytes]
            torch.bitwise_or(words, 0, out=seen.view(words.dtype).view(words.shape))  # a kernel, not a copy engine
            self._buffers.host[: self._nbytes].copy_(seen, non_blocking=True)
        self.event = torch.cuda.Event()
        self.event.record()

    def wait(self) -> Bytes | None:
        self.event.synchronize()
        self.waited, self._kept = True, None
        seen: Bytes = self._buffers.host[: self._nbytes].numpy()
        return seen

    def release(self) -> None:
        self._free.append(self._buffers)


class _Buffers:
    """Where one read puts its words, on the device and on the host."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self.device = torch.empty(nbytes, dtype=torch.uint8, device=device)
        self.host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)


def make_current(device: torch.device) -> None:
    """Let modules that know only "the current device" find this seat's."""
    torch.cuda.set_device(device)


def facts(device: torch.device) -> tuple[str, dict[str, Any]]:
    """The GPU's uuid, and what a report says about it and its software."""
    properties = torch.cuda.get_device_properties(device)
    return f"GPU-{properties.uuid}", {
        "gpu": properties.name,
        "gpu_memory_bytes": int(properties.total_memory),
        "gpu_sms": int(properties.multi_processor_count),
        "compute_capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda or "",
    }


def synchronize(device: torch.device) -> None:
    """Wait for everything that is queued on the device."""
    torch.cuda.synchronize(device)


def mark(device: torch.device) -> Callable[[], None]:
    """Mark the current stream here and now; calling the result waits until the device has come this far."""
    with torch.cuda.device(device):
        event = torch.cuda.Event()
        event.record()
    wait: Callable[[], None] = event.synchronize
    return wait


def spin(device: torch.device, *, us: float) -> None:
    """Keep the current stream busy for about that long."""
    cycles = int(us * cycles_per_us(device))
    with torch.cuda.device(device):
        torch.cuda._sleep(cycles)


def held_nbytes(device: torch.device) -> int:
    """Bytes that live tensors hold on the device, and in pinned memory where torch counts that."""
    torch.cuda.synchronize(device)
    return torch.cuda.memory_allocated(device) + (pinned_nbytes(peak=False) or 0)


def pinned_nbytes(*, peak: bool) -> int | None:
    """Bytes of pinned memory that torch's allocator has from the driver, or the most since `reset_pinned_peak`; None if
    torch does not count them. What it has handed out it counts too, but up to torch 2.11 never down.
    """
    if not hasattr(torch.cuda, "host_memory_stats"):
        return None
    value = torch.cuda.host_memory_stats().get(f"allocated_bytes.{'peak' if peak else 'current'}")
    return None if value is None else int(value)


def reset_pinned_peak() -> None:
    """Count the peak of pinned bytes anew."""
    if hasattr(torch.cuda, "reset_peak_host_memory_stats"):
        torch.cuda.reset_peak_host_memory_stats()


@lru_cache(maxsize=8)
def cycles_per_us(device: torch.device) -> float:
    """Cycles of torch.cuda._sleep in a microsecond, measured once per device."""
    cycles = 2_000_000
    with torch.cuda.device(device):
        torch.cuda._sleep(cycles)
        with timed() as elapsed_us:
            torch.cuda._sleep(cycles)
    return cycles / max(1.0, elapsed_us[0])


@contextmanager
def timed() -> Iterator[list[float]]:
    """Microseconds that the current stream spent on the block, by events; the list is filled when the block ends."""
    begin, end, elapsed_us = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True), [0.0]
    begin.record()
    yield elapsed_us
    end.record()
    end.synchronize()
    elapsed_us[0] = begin.elapsed_time(end) * 1000


def devices() -> list[torch.device]:
    """The CUDA devices that this process can use."""
    return [torch.device("cuda", i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []


@contextmanager
def registered(host: torch.Tensor) -> Iterator[None]:
    """Ordinary memory, page-locked and mapped for every device by cudaHostRegister while the block runs; RuntimeError
    with CUDA's words where that is refused."""
    cudart = torch.cuda.cudart()
    code = int(cudart.cudaHostRegister(host.data_ptr(), host.nbytes, _PORTABLE | _MAPPED))
    if code:
        raise torch.cuda.CudaError(code)
    try:
        yield
    finally:
        cudart.cudaHostUnregister(host.data_ptr())


def captured(device: torch.device, work: Callable[[], Any]) -> Callable[[], None]:
    """Capture `work` as a CUDA graph; calling the result replays it, on the current stream, and waits."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device):
        warm_up = torch.cuda.Stream()
        warm_up.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm_up):
            work()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            work()

    def replay() -> None:
        with torch.cuda.device(device):
            graph.replay()
            torch.cuda.synchronize()

    return replay


def seen_late(
    device: torch.device, make: Callable[[], torch.Tensor], then: Callable[[], None], *, stall_us: float = 20_000
) -> torch.Tensor:
    """What a reader on a side stream sees of a tensor that is let go of once the reader is queued; `then` runs on the
    current stream before it."""
    with torch.cuda.device(device):
        tensor, side = make(), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(int(stall_us * cycles_per_us(device)))
            seen = torch.bitwise_or(tensor, 0)
        del tensor
        then()
        torch.cuda.synchronize()
        return seen.cpu()


def free_nbytes(device: torch.device) -> int:
    """Bytes of device memory that are free, or cached by torch."""
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + cached


def num_pinned_allocations() -> int:
    """How often this process was given pinned memory by torch, or where that is not counted, torch by the driver."""
    stats = torch.cuda.host_memory_stats()
    return int(stats.get("active_requests.allocated", stats.get("num_host_alloc", 0)))
