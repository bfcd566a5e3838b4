"""What a backend is: memory that host and device share, fences on its streams, and the apply."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch

from staging.elements import ElementWrites
from staging.errors import StagingError
from staging.fence import Fence, StepEnd
from staging.packing import PackedWrites


class Probe(NamedTuple):
    """Whether a backend proved itself on a device, and why or why not."""

    name: str
    ok: bool
    reason: str


@dataclass(slots=True, eq=False)
class Block:
    """One allocation as both sides see it: `host` uint8[n] and `device` uint8[n]. Device memory that the host
    never sees has an empty `host`.

    Where `mapped`, the two are the same memory: a device reader reads what the host wrote, when it runs.
    Elsewhere `device` is a twin that `Backend.publish` copies to, and `copied` marks the last such copy.
    """

    host: torch.Tensor
    device: torch.Tensor
    mapped: bool
    pinned: bool = False
    copied: Fence | None = None
    allocated: Fence | None = None  # of what its device memory was used for before
    end: StepEnd | None = None  # of its lease, where it is a slot; None while that goes on
    users: dict[Hashable, Fence] = field(default_factory=dict)  # the last known device work on it, by stream
    requested: int = 0  # host bytes that the caller asked for, without any rounding
    name: str = ""  # of whoever's memory it is, in the statistics
    address: int = field(init=False)  # the device's

    def __post_init__(self) -> None:
        self.address = self.device.data_ptr()

    @property
    def nbytes(self) -> int:
        return self.host.nbytes

    @property
    def pinned_nbytes(self) -> int:
        """Pinned bytes taken from the system; torch's host allocator rounds up to a power of two."""
        return 1 << max(0, self.nbytes - 1).bit_length() if self.pinned else 0

    @property
    def device_nbytes(self) -> int:
        return 0 if self.mapped else self.device.nbytes  # on cpu and sim, memory that plays the device's part

    def lease(self) -> None:
        """Its contents are new: what earlier users were is of no matter any more."""
        self.end = None
        self.users.clear()

    def used(self, fence: Fence) -> None:
        """Device work up to `fence` reads or writes it."""
        self.users[fence.stream] = fence

    def fences(self) -> tuple[Fence, ...]:
        """Of all known device work on it, copies included."""
        ended = () if self.end is None else self.end.fences
        return (*ended, *self.users.values(), *(() if self.copied is None else (self.copied,)))

    def host_fences(self) -> tuple[Fence, ...]:
        """What a host write must wait for: whoever reads host memory in place, or the last copy out of it."""
        if self.mapped:
            return self.fences()
        return () if self.copied is None else (self.copied,)

    def is_writable(self) -> bool:
        """Whether the host may write it now, and nothing that is queued later has to wait for that."""
        end = self.end
        if end is None or not end.closed or not self.mapped:
            return False
        for fence in end.fences:
            if not fence.done():
                return False
        for fence in self.users.values():  # no generators: this is asked for each apply
            if not fence.done():
                break
        else:
            return True
        return False

    def is_idle(self) -> bool:
        """Whether all known device work on it is done; a step that is still open has work to come."""
        return (self.end is None or self.end.closed) and all(fence.done() for fence in self.fences())


class Backend(ABC):
    """One way to hand host memory to one device. It moves bytes; values were converted before."""

    name: ClassVar[str]
    device: torch.device

    @abstractmethod
    def probe(self) -> Probe:
        """Prove on the backend's own stream that the device sees later host writes; never raises."""

    @abstractmethod
    def allocate(self, nbytes: int, *, mapped: bool = True, pinned: bool = True) -> Block:
        """Zeroed host memory with its device view; `mapped=False` asks for a twin and explicit copies,
        `pinned=False` for pageable memory (which then is a twin's source)."""

    @abstractmethod
    def allocate_target(self, nbytes: int, *, resident: bool = True) -> Block:
        """Zeroed device memory that only device work writes; `resident=False` allows mapped host memory."""

    @abstractmethod
    def publish(self, block: Block, start: int, stop: int) -> None:
        """Let work queued on the current stream from now on see the host bytes [start, stop) and all before them.

        Where the backend copies, the stream waits for earlier copies on other streams, also if nothing is new.
        """

    @abstractmethod
    def copy(self, source: torch.Tensor, out: torch.Tensor) -> None:
        """Queue a copy between two device tensors of one shape and dtype on the current stream."""

    @abstractmethod
    def apply(self, buffers: Sequence[torch.Tensor], writes: PackedWrites, targets: Sequence[torch.Tensor]) -> None:
        """Queue one launch that scatters `writes` from `buffers` (the packed one and the stashes, as published) into
        `targets`; all are flat uint8."""

    @abstractmethod
    def apply_elements(self, block: Block, writes: ElementWrites, targets: Sequence[Block]) -> None:
        """Publish the elements packed in `block` and queue one launch that puts them into `targets`, behind all known
        work on those; notes it at each of the blocks."""

    @abstractmethod
    def move(self, source: Block, target: Block, start: int, nbytes: int) -> None:
        """Queue a copy of the first `nbytes` of `source`, as published, to byte `start` of `target`."""

    @abstractmethod
    def fence(self, stream: Any = None) -> Fence:
        """Mark the current end of `stream` (default: the device's current stream)."""

    @abstractmethod
    def order(self, fence: Fence) -> None:
        """Make later work of the current stream wait for `fence` of another one; the host does not wait."""

    def order_behind(self, blocks: Iterable[Block]) -> None:
        """Make later work of the current stream wait for all known device work on `blocks`."""
        for block in blocks:
            for fence in block.fences():
                self.order(fence)

    def is_capturing(self, stream: Any = None) -> bool:
        """Whether `stream` (default: the device's current one) records a graph; asking disturbs no capture."""
        return False

    def refuse_capture(self, *streams: Any) -> None:
        """Raise StagingError while the current stream, or one of `streams`, records a graph: a fence, a query or an
        allocation would ruin the graph, and a publish would happen once, not with each replay."""
        if self.is_capturing() or (streams and any(map(self.is_capturing, streams))):
            raise StagingError(
                "a stream is capturing a graph, and staging can publish, apply, fence or allocate only outside of a "
                "capture; nothing was done. Capture readers of pool.hold_for_graph().tensor, whose address stays, and "
                "call its publish() before each replay"
            )

    def rounded(self, nbytes: int) -> int:
        """Host bytes that an allocation of `nbytes` really takes."""
        return nbytes

    def note(self) -> str:
        """A line for `explain()` about how this backend works here; may be empty."""
        return ""

    def is_device_error(self, error: BaseException) -> bool:
        """Whether `error` means that the device is lost to this process."""
        return False
