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
    """Bytes by kind, and what the slots went through. Thread-safe; off the hot path."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.requested = Tally()  # bytes that callers asked for
        self.allocated = Tally()  # host bytes behind them, with the growth policy's rounding
        self.pinned = Tally()  # pinned bytes, with the rounding of torch's host allocator
        self.device = Tally()  # bytes of device memory
        self.slots = Tally()
        self.growths = 0
        self.waits = 0
        self.wait_ns = 0

    def add(self, block: Block) -> None:
        with self._lock:
            self.requested.add(block.requested)
            self.allocated.add(block.nbytes)
            self.pinned.add(block.pinned_nbytes)
            self.device.add(block.device_nbytes)

    def remove(self, block: Block) -> None:
        with self._lock:
            self.requested.remove(block.requested)
            self.allocated.remove(block.nbytes)
            self.pinned.remove(block.pinned_nbytes)
            self.device.remove(block.device_nbytes)

    def snapshot(self) -> dict[str, int]:
        """Every figure as a plain number, e.g. `pinned_bytes_peak`."""
        with self._lock:
            numbers = {"growths": self.growths, "waits": self.waits, "wait_ns": self.wait_ns}
            for name in ("requested", "allocated", "pinned", "device", "slots"):
                tally: Tally = getattr(self, name)
                unit = "" if name == "slots" else "_bytes"
                numbers |= {f"{name}{unit}_{f.name}": getattr(tally, f.name) for f in fields(tally)}
            numbers["waste_bytes"] = max(self.allocated.current, self.pinned.current) - self.requested.current
            return numbers
