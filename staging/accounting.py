"""What a manager's memory and slots amount to: current, peak and total of each figure, and each name's part."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, fields
from typing import Any

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


@dataclass(slots=True)
class Share:
    """What goes by one name: memory and slots as they are now, growths and waits since the manager was built."""

    allocated_bytes: int = 0
    pinned_bytes: int = 0
    device_bytes: int = 0
    slots: int = 0
    growths: int = 0
    waits: int = 0
    wait_ns: int = 0

    def count(self, block: Block, sign: int) -> None:
        self.allocated_bytes += sign * block.nbytes
        self.pinned_bytes += sign * block.pinned_nbytes
        self.device_bytes += sign * block.device_nbytes


class Accounting:
    """Bytes by kind, and what the slots went through, all told and by name. Thread-safe, also from a finalizer
    that runs inside it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.requested = Tally()  # host bytes that callers asked for
        self.allocated = Tally()  # host bytes behind them, with the growth policy's rounding
        self.pinned = Tally()  # pinned bytes, with the rounding of torch's host allocator
        self.device = Tally()  # bytes of device memory
        self.slots = Tally()
        self._pageable = 0
        self._growths = self._waits = self._wait_ns = 0
        self._shares: dict[str, Share] = {}

    @property
    def host_nbytes(self) -> int:
        """Host bytes in use, as a budget counts them: rounding and retired memory included."""
        return self._pageable + self.pinned.current

    def add(self, block: Block, name: str) -> None:
        """Count a new block, as memory of `name`."""
        with self._lock:
            block.requested, block.name = block.nbytes, name
            self.requested.add(block.requested)
            self.allocated.add(block.nbytes)
            self.pinned.add(block.pinned_nbytes)
            self.device.add(block.device_nbytes)
            self._pageable += 0 if block.pinned else block.nbytes
            self._share(name).count(block, 1)

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
            self._share(block.name).count(block, -1)

    def add_slots(self, count: int, name: str) -> None:
        with self._lock:
            self.slots.add(count)
            self._share(name).slots += count

    def forget_slots(self, count: int, name: str) -> None:
        with self._lock:
            self.slots.remove(count)
            self._share(name).slots -= count

    def grew(self, name: str) -> None:
        with self._lock:
            self._growths += 1
            self._share(name).growths += 1

    def waited(self, elapsed_ns: int, name: str) -> None:
        with self._lock:
            self._waits += 1
            self._wait_ns += elapsed_ns
            share = self._share(name)
            share.waits += 1
            share.wait_ns += elapsed_ns

    def snapshot(self) -> dict[str, Any]:
        """Every figure as a plain number, e.g. `pinned_bytes_peak`, and under `names` those of each name."""
        with self._lock:
            numbers: dict[str, Any] = {"growths": self._growths, "waits": self._waits, "wait_ns": self._wait_ns}
            for name in ("requested", "allocated", "pinned", "device", "slots"):
                tally: Tally = getattr(self, name)
                unit = "" if name == "slots" else "_bytes"
                numbers |= {f"{name}{unit}_{f.name}": getattr(tally, f.name) for f in fields(tally)}
            numbers["waste_bytes"] = self.host_nbytes - self.requested.current
            numbers["names"] = {name: asdict(share) for name, share in tuple(self._shares.items())}
            return numbers

    def _share(self, name: str) -> Share:
        return self._shares.setdefault(name, Share())
