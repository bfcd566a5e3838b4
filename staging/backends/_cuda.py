"""What the two CUDA backends share: events as fences, the apply, and pinned memory that is really pinned."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from staging.backend import Backend, Block, Probe
from staging.fence import Fence
from staging.packing import PackedWrites

_POLL_S = 20e-6


def current_device() -> int:
    """The index of the current CUDA device of this thread; starts no context where there is none."""
    return torch.cuda.current_device() if torch.cuda.is_available() else 0


class CudaFence:
    """An event on one stream."""

    __slots__ = ("event", "stream")

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = stream.cuda_stream
        self.event = torch.cuda.Event()
        self.event.record(stream)

    def done(self) -> bool:
        return bool(self.event.query())

    def wait(self, timeout_s: float | None = None) -> bool:
        if timeout_s is None:
            self.event.synchronize()
            return True
        deadline = time.monotonic() + timeout_s
        while not self.event.query():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return True


class CudaBackend(Backend):
    """One CUDA device. Every call works on that device, whatever the thread's current one is."""

    def __init__(self, device: torch.device) -> None:
        if device.type != "cuda":
            raise ValueError(f"{self.name} serves CUDA devices, not {str(device)!r}")
        if not torch.cuda.is_available():
            raise ValueError(_why_no_cuda())
        index = torch.cuda.current_device() if device.index is None else device.index
        if index >= torch.cuda.device_count():
            raise ValueError(f"cuda:{index} does not exist: there are {torch.cuda.device_count()} devices")
        self.device = torch.device("cuda", index)
        try:
            from staging import kernels

            self._kernels: Any = kernels
        except ImportError:
            self._kernels = None

    def probe(self) -> Probe:
        try:
            with torch.cuda.device(self.device), torch.cuda.stream(torch.cuda.Stream(self.device)):
                seen = self._write_after_mapping()
        except RuntimeError as error:
            return Probe(self.name, False, str(error).splitlines()[0])
        if seen != [7, 11]:
            return Probe(self.name, False, f"the device read {seen} where the host wrote [7, 11] after mapping")
        return Probe(self.name, True, f"writes after mapping were read back on {self.device}")

    def _write_after_mapping(self) -> list[int]:
        block, seen = self.allocate(64), []
        for value in (7, 11):
            block.host.fill_(value)
            self.publish(block, 0, 64)
            seen.append(int(torch.add(block.device, 0)[-1]))  # a kernel's read; .item() waits for this stream
        return seen

    def allocate_target(self, nbytes: int, *, resident: bool = True) -> Block:
        with torch.cuda.device(self.device):
            device = torch.zeros(nbytes, dtype=torch.uint8, device=self.device)
        return Block(torch.empty(0, dtype=torch.uint8), device, mapped=False)

    def allocate_twin(self, nbytes: int, *, pinned: bool) -> Block:
        """Host memory, pinned where asked for, and device memory of the same size."""
        with torch.cuda.device(self.device):
            host = self.pinned_zeros(nbytes) if pinned else torch.zeros(nbytes, dtype=torch.uint8)
            device = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
            allocated = self.fence()  # the memory may come from work that is queued on this stream
        return Block(host, device, mapped=False, pinned=pinned, allocated=allocated)

    def pinned_zeros(self, nbytes: int) -> torch.Tensor:
        """Zeroed pinned uint8[nbytes]; raises RuntimeError where the system gives none."""
        host = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=True)
        if nbytes and not host.is_pinned():
            raise RuntimeError(
                "the host memory is not pinned: the system grants no page-locked memory (WSL, ulimit -l?)"
            )
        return host

    def publish(self, block: Block, start: int, stop: int) -> None:
        if block.mapped:
            return
        earlier = block.copied or block.allocated
        if earlier is not None:
            self.order(earlier)
        if start < stop:
            block.device[start:stop].copy_(block.host[start:stop], non_blocking=block.pinned)
            block.copied = self.fence()

    def copy(self, source: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(source, non_blocking=True)

    def apply(self, packed: torch.Tensor, writes: PackedWrites, targets: Sequence[torch.Tensor]) -> None:
        with torch.cuda.device(self.device):
            if self._kernels is not None:
                self._kernels.scatter(packed, len(writes))
            else:
                _scatter_by_torch(packed, writes, targets)

    def fence(self, stream: Any = None) -> Fence:
        return CudaFence(torch.cuda.current_stream(self.device) if stream is None else stream)

    def order(self, fence: Fence) -> None:
        if not isinstance(fence, CudaFence):
            raise TypeError(f"a CUDA stream cannot wait for {fence!r}: it is no CUDA event")
        stream = torch.cuda.current_stream(self.device)
        if fence.stream != stream.cuda_stream:
            stream.wait_event(fence.event)

    def rounded(self, nbytes: int) -> int:
        return 1 << max(0, nbytes - 1).bit_length()

    def is_device_error(self, error: BaseException) -> bool:
        """Whether CUDA itself says so: most errors (no memory, a bad argument) leave the context whole, and a fault
        may first show as Triton's error."""
        if "CUDA" not in str(error) or isinstance(error, torch.cuda.OutOfMemoryError):
            return False
        try:
            torch.cuda.current_stream(self.device).query()
        except RuntimeError:
            return True
        return False

    def note(self) -> str:
        tested = " (ROCm: untested)" if torch.version.hip else ""
        return ("applies by the Triton kernel" if self._kernels is not None else "no Triton: applies by torch") + tested


def _why_no_cuda() -> str:
    if torch.version.cuda is None and torch.version.hip is None:
        return "this torch was built without CUDA; install a CUDA build to use the GPU (XPU is not supported)"
    return "torch.cuda finds no device: check the driver (nvidia-smi) and CUDA_VISIBLE_DEVICES"


def _scatter_by_torch(packed: torch.Tensor, writes: PackedWrites, targets: Sequence[torch.Tensor]) -> None:
    """The kernel's work as one copy a chunk, for systems without Triton."""
    nbytes = writes.lengths * writes.itemsizes
    rows = zip(writes.targets.tolist(), writes.offsets.tolist(), writes.sources.tolist(), nbytes.tolist(), strict=True)
    for target, offset, source, count in rows:
        targets[target].view(torch.uint8)[offset : offset + count].copy_(packed[source : source + count])
