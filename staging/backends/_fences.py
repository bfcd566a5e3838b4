"""Completion marks of CUDA streams: a word that the stream counts up, or an event where the driver cannot write one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch

from staging.backends._driver import Driver, Launch
from staging.elements import DONE_AT

_NUM_WORDS = 1024
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

    __slots__ = ("_line", "_value", "stream")

    def __init__(self, line: _Line, value: int) -> None:
        self._line, self._value, self.stream = line, value, line.stream

    def done(self) -> bool:
        passed: bool = self._line.word[0] >= self._value
        return passed

    def wait(self, timeout_s: float | None = None) -> bool:
        return self.done() or _poll(self.done, timeout_s, self._line.of.check_device)

    def order(self, stream: torch.cuda.Stream) -> None:
        """Let later work of `stream` wait for it."""
        self._line.of.wait_on(stream.cuda_stream, self._line.address, self._value)


class _Line:
    """A stream, its word, and the last value that was queued for that."""

    __slots__ = ("address", "last", "of", "stream", "word")

    def __init__(self, of: WordFences, stream: int, word: memoryview, address: int) -> None:
        self.of, self.stream, self.word, self.address, self.last = of, stream, word, address, 0


class WordFences:
    """The words of one device's streams, in pinned memory. Each is written in its stream's order, so it only grows."""

    def __init__(self, driver: Driver, device: torch.device, lock: threading.Lock) -> None:
        self._driver, self._device = driver, device
        host = torch.zeros(_NUM_WORDS, dtype=torch.int64, pin_memory=True)
        if not host.is_pinned():
            raise RuntimeError("the words of fences are not pinned")
        self.words = memoryview(host.numpy().data)
        self._address = host.data_ptr()  # the device's address too, under unified addressing; `prove` shows it
        self._lines: dict[int, _Line] = {}
        self._lock = lock  # one launch or record at a time

    def record(self, stream: int) -> WordFence | None:
        """A fence at the end of the stream (a raw handle); None where all words are taken."""
        with self._lock:  # values must reach the stream in their order
            line = self._lines.get(stream) or self._line(stream)
            if line is None:
                return None
            line.last = value = line.last + 1
            self._driver.write_word(stream, line.address, value)
        return WordFence(line, value)

    def passed_on(self, stream: int, launch: Launch, address: int, words: memoryview) -> WordFence | None:
        """A fence that the kernel of elements sets itself: launch one program of it over the packed `words` that lie
        at `address`; None, having launched nothing, where all words are taken."""
        with self._lock:
            line = self._lines.get(stream) or self._line(stream)
            if line is None:
                return None
            line.last = value = line.last + 1
            words[DONE_AT], words[DONE_AT + 1] = line.address, value
            launch(stream, address, 1, 1)
        return WordFence(line, value)

    def _line(self, stream: int) -> _Line | None:
        index = len(self._lines)
        if index == _NUM_WORDS:
            return None
        word, address = self.words[index : index + 1], self._address + 8 * index
        return self._lines.setdefault(stream, _Line(self, stream, word, address))

    def wait_on(self, stream: int, address: int, value: int) -> None:
        """Let later work of `stream` wait until the word at `address` is at least `value`."""
        self._driver.wait_word(stream, address, value)

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
