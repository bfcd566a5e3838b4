"""What a manager's memory and slots amount to: current, peak and total of each figure."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields

from staging.backend import Block


@dataclass(slots=True)
class Tally:
    """One figure over time."""

    current: int = 0
    peak: int = 0
    total: int = 0

    def add(self, amount: int) -> None:
        self.current += amount
        self.peak = max(self.peak, self.current)
        self.total += amount

    def remove(self, amount: int) -> None:
        self.current -= amount


class Accounting:
    """Bytes by kind, and what the slots went through. Thread-safe, also from a finalizer that runs inside it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.requested = Tally()  # host bytes that callers asked for
        self.allocated = Tally()  # host bytes behind them, with the growth policy's rounding
        self.pinned = Tally()  # pinned bytes, with the rounding of torch's host allocator
        self.device = Tally()  # bytes of device memory
        self.slots = Tally()
        self._pageable = 0
        self._growths = self._waits = self._wait_ns = 0

    @property
    def host_nbytes(self) -> int:
        """Host bytes in use, as a budget counts them: rounding and retired memory included."""
        return self._pageable + self.pinned.current

    def add(self, block: Block) -> None:
        with self._lock:
            block.requested = block.nbytes
            self.requested.add(block.requested)
            self.allocated.add(block.nbytes)
            self.pinned.add(block.pinned_nbytes)
            self.device.add(block.device_nbytes)
            self._pageable += 0 if block.pinned else block.nbytes

    def request(self, block: Block, nbytes: int) -> None:
        """Less was asked for than a policy made of it."""
        with self._lock:
            self.requested.remove(block.requested - nbytes)
            self.requested.total -= block.requested - nbytes
            block.requested = nbytes

    def remove(self, block: Block) -> None:
        with self._lock:
            self.requested.remove(block.requested)
            self.allocated.remove(block.nbytes)
            self.pinned.remove(block.pinned_nbytes)
            self.device.remove(block.device_nbytes)
            self._pageable -= 0 if block.pinned else block.nbytes

    def forget_slots(self, count: int) -> None:
        with self._lock:
            self.slots.remove(count)

    def grew(self) -> None:
        with self._lock:
            self._growths += 1

    def waited(self, elapsed_ns: int) -> None:
        with self._lock:
            self._waits += 1
            self._wait_ns += elapsed_ns

    def snapshot(self) -> dict[str, int]:
        """Every figure as a plain number, e.g. `pinned_bytes_peak`."""
        with self._lock:
            numbers = {"growths": self._growths, "waits": self._waits, "wait_ns": self._wait_ns}
            for name in ("requested", "allocated", "pinned", "device", "slots"):
                tally: Tally = getattr(self, name)
                unit = "" if name == "slots" else "_bytes"
                numbers |= {f"{name}{unit}_{f.name}": getattr(tally, f.name) for f in fields(tally)}
            numbers["waste_bytes"] = self.host_nbytes - self.requested.current
            return numbers
