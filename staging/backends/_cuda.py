"""What the two CUDA backends share: fences, the apply, and pinned memory that is really pinned."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from staging.backend import Backend, Block, Probe
from staging.backends._by_torch import scatter_by_torch, scatter_elements_by_torch
from staging.backends._driver import Driver, Launch
from staging.backends._fences import EventFence, WordFence, WordFences
from staging.elements import HEADER, WORD, ElementWrites, Layout
from staging.fence import Fence
from staging.packing import CHUNK, PackedWrites

_raw_stream = torch._C._cuda_getCurrentRawStream if hasattr(torch._C, "_cuda_getCurrentRawStream") else None
_raw_capturing: Callable[[], bool] = getattr(torch._C, "_cuda_isCurrentStreamCapturing", bool)  # about 100 ns

_BY_ONE_PROGRAM = 4 * CHUNK
"""Elements that one program moves before more of them are worth a fence of their own."""


def current_device() -> int:
    """The index of the current CUDA device of this thread; 0 where CUDA cannot be used, as in a forked child."""
    try:
        return torch.cuda.current_device() if torch.cuda.is_available() else 0
    except RuntimeError:
        return 0


def is_capturing() -> bool:
    """Whether this thread's current stream records a graph; starts no context."""
    return torch.cuda.is_initialized() and _raw_capturing()


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
        self._current: Callable[[], int] = partial(_torch_stream if _raw_stream is None else _raw_stream, index)
        """Gives the raw handle of the device's current stream."""
        self._is_only_device = torch.cuda.device_count() == 1
        self.refuse_capture()
        self._lock = threading.Lock()
        self._words: WordFences | None = None  # set by the probe, where they prove themselves
        self._driver: Driver | None = None  # set with them
        self._why_slow = ""
        self._launch: Launch | None = None
        self._launch_elements: Launch | None = None
        try:
            from staging import kernels

            self._kernels: Any = kernels
        except ImportError:
            self._kernels = None

    def probe(self) -> Probe:
        try:
            stream = torch.cuda.Stream(self.device)
            with torch.cuda.device(self.device), torch.cuda.stream(stream):
                self._bind_driver(stream)
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

    def _bind_driver(self, stream: torch.cuda.Stream) -> None:
        """Take the short ways through the driver where there are any; what they are for works without, slower."""
        if self._words is not None or _raw_stream is None or torch.version.hip is not None:
            return
        try:
            driver = Driver()
            words = WordFences(driver, self.device, self._lock)
            if words.prove(stream):
                self._words, self._driver = words, driver
                if self._kernels is not None:
                    self._launch = self._compiled(self._kernels.scatter, driver, stream)
                    launch = self._compiled(self._kernels.scatter_elements, driver, stream)
                    self._launch_elements = launch if self._marks_its_end(launch, stream) else None
        except (OSError, AttributeError, RuntimeError) as error:
            self._why_slow = f"{type(error).__name__}: {error}"

    def _compiled(self, kernel: Any, driver: Driver, stream: torch.cuda.Stream) -> Launch:
        """A kernel by its handle, compiled by a launch that has nothing to move."""
        idle = torch.zeros(HEADER, dtype=torch.int64, device=self.device)
        compiled = kernel(idle, 1)
        stream.synchronize()
        meta = compiled.metadata
        return driver.launcher(compiled.function, num_threads=32 * meta.num_warps, shared_nbytes=meta.shared)

    def _marks_its_end(self, launch: Launch, stream: torch.cuda.Stream) -> bool:
        """Whether the kernel can set a word of host memory: that saves a fence of its own."""
        assert self._words is not None
        block, target = self.allocate(256), torch.zeros(2, dtype=torch.int64, device=self.device)
        if not block.mapped:
            return True  # there the copy needs a fence anyway
        writes = ElementWrites(block.host.numpy())
        writes.open(1, Layout([target.data_ptr(), 8], span=2, width=1, itemsize=8))
        writes.fill(np.array([1]), np.array([7], WORD))
        fence = self._words.passed_on(stream.cuda_stream, launch, block.address, writes.words)
        stream.synchronize()
        return fence is not None and fence.done() and target.tolist() == [0, 7]

    def allocate_target(self, nbytes: int, *, resident: bool = True) -> Block:
        with torch.cuda.device(self.device):
            device = torch.zeros(nbytes, dtype=torch.uint8, device=self.device)
        return Block(torch.empty(0, dtype=torch.uint8), device, mapped=False)

    def allocate_twin(self, nbytes: int, *, pinned: bool) -> Block:
        """Host memory, pinned where asked for, and device memory of the same size."""
        with torch.cuda.device(self.device):
            host = self.pinned_zeros(nbytes) if pinned else torch.zeros(nbytes, dtype=torch.uint8)
            device = torch.zeros(nbytes, dtype=torch.uint8, device=self.device)  # as the host's: rows never published
            allocated = self.fence()  # behind the zeroing, and behind work on this stream that had the memory before
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
            if block.pinned and self._driver is not None:
                self._copy(block.address + start, block.host.data_ptr() + start, stop - start)
            else:
                block.device[start:stop].copy_(block.host[start:stop], non_blocking=block.pinned)
            block.copied = self.fence()

    def apply_elements(self, block: Block, writes: ElementWrites, targets: Sequence[Block]) -> None:
        stream = self._current()
        for target in targets:
            for user, fence_of_it in target.users.items():
                if user != stream:
                    self.order(fence_of_it)
        fence: Fence | None = None
        if self._launch_elements is not None and block.mapped and writes.num <= _BY_ONE_PROGRAM:
            assert self._words is not None
            fence = self._words.passed_on(stream, self._launch_elements, block.address, writes.words)
        if fence is None:
            self.publish(block, 0, writes.nbytes)
            self._queue_elements(block, writes, targets)
            fence = self.fence()
        block.users[stream] = fence
        for target in targets:
            target.users[stream] = fence

    def _queue_elements(self, block: Block, writes: ElementWrites, targets: Sequence[Block]) -> None:
        num_programs = -(-writes.num // CHUNK)
        with torch.cuda.device(self.device):
            if self._launch_elements is not None:
                with self._lock:
                    self._launch_elements(self._current(), block.address, num_programs, 1)
            elif self._kernels is not None:
                words = block.device[: block.device.numel() & ~7].view(torch.int64)
                self._kernels.scatter_elements(words, num_programs)
            else:
                scatter_elements_by_torch(writes, targets)

    def move(self, source: Block, target: Block, start: int, nbytes: int) -> None:
        if self._driver is not None:
            self._copy(target.address + start, source.address, nbytes)
        else:
            self.copy(source.device[:nbytes], target.device[start : start + nbytes])

    def _copy(self, address: int, source: int, nbytes: int) -> None:
        assert self._driver is not None
        with self._lock:
            self._driver.copy(self._current(), address, source, nbytes)

    def copy(self, source: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(source, non_blocking=True)

    def apply(self, buffers: Sequence[torch.Tensor], writes: PackedWrites, targets: Sequence[torch.Tensor]) -> None:
        num_programs = min(-(-writes.num_elements_max // CHUNK), max(8, 512 // len(writes)))  # the longest run's chunks
        if self._launch is not None:
            with self._lock:
                self._launch(self._current(), buffers[0].data_ptr() + writes.header_at, len(writes), num_programs)
            return
        packed = buffers[0]
        with torch.cuda.device(self.device):
            if self._kernels is not None:
                header = packed[writes.header_at : writes.nbytes].view(torch.int64)
                self._kernels.scatter(header, len(writes), num_programs)
            else:
                scatter_by_torch(buffers, writes, targets)

    def fence(self, stream: Any = None) -> Fence:
        if self._words is not None:
            fence = self._words.record(self._current() if stream is None else stream.cuda_stream)
            if fence is not None:
                return fence
        return EventFence(torch.cuda.current_stream(self.device) if stream is None else stream)

    def order_behind(self, blocks: Iterable[Block]) -> None:
        current = self._current()
        for block in blocks:
            if block.copied is None and (block.end is None or not block.end.fences):
                for stream, fence in block.users.items():
                    if stream != current:
                        self.order(fence)
            else:
                for fence in block.fences():
                    self.order(fence)

    def order(self, fence: Fence) -> None:
        if not isinstance(fence, EventFence | WordFence):
            raise TypeError(f"a CUDA stream cannot wait for {fence!r}: it is no fence of this backend")
        if fence.stream != self._current() and not fence.done():
            fence.order(torch.cuda.current_stream(self.device))

    def is_capturing(self, stream: Any = None) -> bool:
        try:
            if stream is not None:
                return _is_stream_capturing(stream)
            if self._is_only_device or torch.cuda.current_device() == self.device.index:
                return _raw_capturing()
            with torch.cuda.device(self.device):
                return _raw_capturing()
        except RuntimeError as error:
            if "captur" in str(error):  # the legacy stream, while another one that blocks it records
                return True
            raise

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
        slow = f"; no driver calls ({self._why_slow}), fences are events" if self._why_slow else ""
        return (
            ("applies by the Triton kernel" if self._kernels is not None else "no Triton: applies by torch")
            + slow
            + tested
        )


def _torch_stream(index: int) -> int:
    return int(torch.cuda.current_stream(index).cuda_stream)


def _is_stream_capturing(stream: Any) -> bool:
    asked = getattr(stream, "is_capturing", None)  # of torch's streams, in versions that have it
    if asked is not None:
        return bool(asked())
    with torch.cuda.stream(stream):
        return _raw_capturing()


def _why_no_cuda() -> str:
    if torch.version.cuda is None and torch.version.hip is None:
        return "this torch was built without CUDA; install a CUDA build to use the GPU (XPU is not supported)"
    return "torch.cuda finds no device: check the driver (nvidia-smi) and CUDA_VISIBLE_DEVICES"
