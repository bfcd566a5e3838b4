"""What a run shows while it runs: a live bar on a terminal, otherwise a plain line per finished assignment.

Either way nothing is silent for more than ten seconds: a thread repeats what is going on, also while Ray starts.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable
from typing import TextIO

from rig.records import Record

_SILENCE_S = 9.0
_SEATS_SHOWN = 8


def make_progress(stream: TextIO | None = None) -> Progress:
    """The live bar where `stream` (standard error by default) is a terminal, plain lines elsewhere."""
    stream = stream or sys.stderr
    return Live(stream) if stream.isatty() else Progress(stream)


class Progress:
    """Plain lines. A context manager; its methods may be called from the run's thread only."""

    def __init__(self, stream: TextIO, *, silence_s: float = _SILENCE_S) -> None:
        self._stream, self._silence_s = stream, silence_s
        self._started = self._last = time.monotonic()
        self._num_done = self._num_planned = 0
        self._phase = "starting"
        self._at: dict[str, str] = {}
        self._controls: dict[str, list[bool]] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()

    def __enter__(self) -> Progress:
        threading.Thread(target=self._break_silence, name="rig-progress", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def phase(self, text: str) -> None:
        """What the run is at, until seats work."""
        self._phase = text
        self._say(text)

    def planned(self, num_assignments: int) -> None:
        """How many assignments there will be."""
        self._num_planned = num_assignments

    def took(self, records: Iterable[Record]) -> None:
        """Show what arrived: each finished assignment, and each seat's controls."""
        not_run: list[Record] = []
        for record in records:
            if record["type"] == "assignment":
                self._num_done += record["attempt"] == 1  # what runs once more was counted
                self._at.pop(record["seat"], None)
                if record["verdict"] == "INCOMPLETE" and not record["elapsed_s"]:
                    not_run.append(record)
                else:
                    self._finished(record)
            elif record["type"] == "control":
                self._controls.setdefault(record["seat"], []).append(bool(record["caught"]))
            elif record["type"] == "controls":
                caught = self._controls.get(record["seat"], [])
                self._say(f"{record['seat']} controls caught {sum(caught)}/{len(caught)}")
            elif record["type"] == "lost":
                self._say(f"{record['seat']} lost: {_brief(record['reason'])}")
        if not_run:
            self._say(f"{not_run[0]['seat']} will not run {len(not_run)} assignments: {_brief(not_run[0]['reason'])}")

    def beat(self, seat: str, at: str) -> None:
        """A seat's sign of life, with what it is at."""
        self._at[seat] = at

    def _finished(self, record: Record) -> None:
        words = f"{record['checked_words']:,} words " if record["checked_words"] else ""
        id_ = record["assignment"].rpartition("@")[0]
        why = f" ({_brief(record['reason'])})" if record["reason"] else ""
        self._say(f"{record['seat']} {record['verdict']} {id_} {words}{record['elapsed_s']:.2f} s{why}")

    def _say(self, text: str) -> None:
        with self._lock:
            self._last = time.monotonic()
            counted = f"{self._num_done}/{self._num_planned} " if self._num_planned else ""
            print(f"[{counted}{self._last - self._started:.1f} s] {text}", file=self._stream, flush=True)

    def _break_silence(self) -> None:
        while not self._over.wait(0.5):
            if time.monotonic() - self._last >= self._silence_s:
                self._say(self._summary())

    def _summary(self) -> str:
        at = sorted(self._at.copy().items())
        shown = "; ".join(f"{seat} {what}" for seat, what in at[:_SEATS_SHOWN])
        more = f"; and {len(at) - _SEATS_SHOWN} more seats" if len(at) > _SEATS_SHOWN else ""
        return f"running: {shown}{more}" if at else f"still {self._phase}"


class Live(Progress):
    """A bar over all assignments, and a line per seat with what runs there."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        from rich import progress
        from rich.console import Console
        from rich.table import Column

        fixed = Column(no_wrap=True)
        numbers = progress.MofNCompleteColumn(table_column=fixed), progress.TimeElapsedColumn(table_column=fixed)
        rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # what runs gets what is left, so that the bar stays
        text = progress.TextColumn("{task.description}", markup=False, table_column=rest)
        columns = progress.BarColumn(bar_width=20, table_column=Column(min_width=20)), *numbers, text
        self._bar = progress.Progress(*columns, console=Console(file=stream), transient=True, expand=True)
        self._total = self._bar.add_task("starting", total=None)
        self._bad = 0

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def planned(self, num_assignments: int) -> None:
        """How many assignments there will be."""
        super().planned(num_assignments)
        self._bar.update(self._total, total=num_assignments)

    def beat(self, seat: str, at: str) -> None:
        """A seat's sign of life, shown on the bar."""
        super().beat(seat, at)
        self._bar.update(self._total, description=self._summary())

    def _finished(self, record: Record) -> None:
        self._bar.update(self._total, completed=self._num_done)
        if record["verdict"] not in ("PASS", "SKIP"):
            super()._finished(record)

    def _say(self, text: str) -> None:
        self._bar.update(self._total, description=text)
        if not text.startswith("running"):
            self._bar.console.print(text, highlight=False, markup=False)


def _brief(text: str) -> str:
    lines = text.strip().splitlines() or [""]
    return (lines[-1] if lines[0].startswith("Traceback") else lines[0])[:160]
