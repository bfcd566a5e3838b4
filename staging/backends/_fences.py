"""Completion marks of CUDA streams: a word that the stream counts up, or an event where the driver cannot write one."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable

import torch

from staging.backends._driver import Driver, Launch
from staging.elements import DONE_AT

_NUM_WORDS = 1024
_DONE = struct.Struct("2q")
_SPIN_S, _SLEEP_S, _ALIVE_S = 50e-6, 20e-6, 0.2


class EventFence:
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
        return _poll(self.done, timeout_s, _nothing)

    def order(self, stream: torch.cuda.Stream) -> None:
        """Let later work of `stream` wait for it."""
        stream.wait_event(self.event)


class WordFence:
    """Done once its stream's word has reached `value`; asking costs one load of host memory."""

    __slots__ = ("_index", "_of", "_value", "_words", "stream")

    def __init__(self, words: memoryview, of: WordFences, stream: int, index: int, value: int) -> None:
        self._words, self._of, self.stream, self._index, self._value = words, of, stream, index, value

    def done(self) -> bool:
        passed: bool = self._words[self._index] >= self._value
        return passed

    def wait(self, timeout_s: float | None = None) -> bool:
        return self.done() or _poll(self.done, timeout_s, self._of.check_device)

    def order(self, stream: torch.cuda.Stream) -> None:
        """Let later work of `stream` wait for it."""
        self._of.wait_on(stream.cuda_stream, self._index, self._value)


class WordFences:
    """The words of one device's streams, in pinned memory. Each is written in its stream's order, so it only grows."""

    def __init__(self, driver: Driver, device: torch.device, lock: threading.Lock) -> None:
        self._driver, self._device = driver, device
        host = torch.zeros(_NUM_WORDS, dtype=torch.int64, pin_memory=True)
        if not host.is_pinned():
            raise RuntimeError("the words of fences are not pinned")
        self.words = memoryview(host.numpy().data)
        self._address = host.data_ptr()  # the device's address too, under unified addressing; `prove` shows it
        self._lines: dict[int, list[int]] = {}
        self._lock = lock  # one launch or record at a time

    def record(self, stream: int) -> WordFence | None:
        """A fence at the end of the stream (a raw handle); None where all words are taken."""
        with self._lock:  # values must reach the stream in their order
            line = self._lines.get(stream) or self._line(stream)
            if line is None:
                return None
            line[1] += 1
            index, value = line
            self._driver.write_word(stream, self._address + 8 * index, value)
        return WordFence(self.words, self, stream, index, value)

    def passed_on(self, stream: int, launch: Launch, address: int, packed: memoryview) -> WordFence | None:
        """A fence that the kernel of elements sets itself: launch one program of it over `packed` bytes that lie at
        `address`; None, having launched nothing, where all words are taken."""
        with self._lock:
            line = self._lines.get(stream) or self._line(stream)
            if line is None:
                return None
            line[1] += 1
            index, value = line
            _DONE.pack_into(packed, 8 * DONE_AT, self._address + 8 * index, value)
            launch(stream, address, 1, 1)
        return WordFence(self.words, self, stream, index, value)

    def _line(self, stream: int) -> list[int] | None:
        """Which word is a stream's, and the last value that was queued for it."""
        if len(self._lines) == _NUM_WORDS:
            return None
        return self._lines.setdefault(stream, [len(self._lines), 0])

    def wait_on(self, stream: int, index: int, value: int) -> None:
        """Let later work of `stream` wait until a word is at least `value`."""
        self._driver.wait_word(stream, self._address + 8 * index, value)

    def check_device(self) -> None:
        """Raises RuntimeError where the device is lost: its words would never be written."""
        torch.cuda.current_stream(self._device).query()

    def prove(self, stream: torch.cuda.Stream) -> bool:
        """Whether a write and a wait on `stream` work, seen from the host."""
        fence = self.record(stream.cuda_stream)
        if fence is None:
            return False
        fence.order(stream)
        stream.synchronize()
        return fence.done()


def _poll(done: Callable[[], bool], timeout_s: float | None, check_alive: Callable[[], None]) -> bool:
    begin = alive = time.monotonic()
    while not done():
        now = time.monotonic()
        if timeout_s is not None and now - begin >= timeout_s:
            return done()
        if now - alive > _ALIVE_S:
            check_alive()
            alive = now
        if now - begin > _SPIN_S:
            time.sleep(_SLEEP_S)
    return True


def _nothing() -> None:
    """An event's query reports a lost device itself."""
