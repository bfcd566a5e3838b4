"""`--local`: one seat, s0, in this process, without Ray. For debugging and unit tests; isolation is promised under Ray
only.

Deadlines: a watchdog thread saves the stacks and then interrupts the main thread by a signal (SIGUSR2), which ends
anything that runs Python code or waits in an interruptible call. What still does not end, such as a target that
swallows every exception, ends with the process: the run is written up from the watchdog thread. A call that never
gives the interpreter's lock back stops the watchdog, too: then faulthandler, which needs no lock, saves the stacks and
ends the process with exit 1 and without a last line. The records stay, and `rig collect DIR` writes the report.
"""

from __future__ import annotations

import contextlib
import faulthandler
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

from rig.dispatch import GRACE_S, Batch, Beat, Done, Event, Job, Lost
from rig.errors import Incomplete
from rig.records import Record
from rig.shell import Shell
from rig.spool import Spool, path_of
from rig.whereabouts import where

_INTERRUPT_S = 10.0
_RESORT_S = 5.0  # after all that needs the interpreter's lock had its time


class Deadline(KeyboardInterrupt):
    """Raised in the main thread when a job's time is over; like an interrupt, it is nothing that a target did."""


class LocalCrew:
    """One worker in this process.

    `on_stuck` is called from the watchdog thread when the main thread cannot be interrupted; it does not return. Inside
    a `raising` block a signal to the process raises KeyboardInterrupt.
    """

    def __init__(
        self,
        shell: Shell,
        *,
        seat: str,
        stacks: Path,
        on_stuck: Callable[[Lost], None],
        raising: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._shell, self._seat, self._stacks = shell, seat, stacks
        self._on_stuck, self._raising = on_stuck, raising
        self._batches: Iterator[list[Record]] = iter(())
        self._job: Job | None = None
        self._launched = 0.0
        self._in_main = threading.current_thread() is threading.main_thread()
        self._resort: IO[str] | None = None

    def launch(self, seat: str, job: Job) -> None:
        """Make the job's generator; `poll` runs it."""
        assert seat == self._seat
        self._job, self._launched = job, time.monotonic()
        if job.assignment is None:
            self._batches = self._shell.controls(list(job.backends))
        else:
            self._batches = self._shell.run(job.assignment, job.target or {})

    def poll(self, timeout_s: float) -> Iterable[Event]:
        """Run until the next batch, however long that takes."""
        job = self._job
        assert job is not None
        left_s = max(0.05, job.timeout_s + GRACE_S - (time.monotonic() - self._launched))
        try:
            if self._in_main:
                self._arm(left_s)
            with self._raising(), Watchdog(left_s, self.save_stacks, on_stuck=self._stuck, enabled=self._in_main):
                return [Batch(self._seat, next(self._batches))]
        except StopIteration:
            return [Done(self._seat)]
        except Deadline:
            return [self._lost()]
        except KeyboardInterrupt:  # a job may have said nothing for long, and is none the less alive
            return [Beat(self._seat, self._shell.progress())]
        finally:
            faulthandler.cancel_dump_traceback_later()

    def close(self) -> None:
        """Leave no empty file of stacks behind."""
        if self._resort is not None:
            self._resort.close()
            if not (path := self._stacks / f"{self._seat}-last.txt").stat().st_size:
                path.unlink()
            with contextlib.suppress(OSError):  # stacks are there
                self._stacks.rmdir()

    def _arm(self, left_s: float) -> None:
        """What ends a call that never gives the lock back. It needs an open file, so that there is one from now on."""
        if self._resort is None:
            self._stacks.mkdir(parents=True, exist_ok=True)
            self._resort = (self._stacks / f"{self._seat}-last.txt").open("w", encoding="utf-8")
        faulthandler.dump_traceback_later(left_s + _INTERRUPT_S + _RESORT_S, file=self._resort, exit=True)

    def give_up(self, stuck: Mapping[str, str]) -> Iterable[Lost]:
        """The job came back by itself, but late."""
        return [Lost(seat, "HANG", reason) for seat, reason in stuck.items()]

    def save_stacks(self) -> None:
        """The stacks of all threads of this process, under `stacks/`, and in where.txt what the seat is at."""
        self._stacks.mkdir(parents=True, exist_ok=True)
        with (self._stacks / f"{self._seat}.txt").open("w+", encoding="utf-8") as file:
            faulthandler.dump_traceback(file=file, all_threads=True)
            file.seek(0)
            stacks = file.read()
        jobs = {self._seat: self._job.subject} if self._job else {}
        text = where({self._seat: stacks}, at={self._seat: self._shell.progress()}, jobs=jobs, silent=())
        (self._stacks / "where.txt").write_text(text, encoding="utf-8")

    def _stuck(self) -> None:
        self._on_stuck(self._lost())

    def _lost(self) -> Lost:
        assert self._job is not None
        where = f"stacks in {self._stacks.name}/{self._seat}.txt"
        return Lost(self._seat, "HANG", f"no end within timeout_s = {self._job.timeout_s:g}; {where}")


class Watchdog:
    """Raises `Deadline` in the main thread when a with-block takes longer than `timeout_s`."""

    def __init__(
        self, timeout_s: float, on_overdue: Callable[[], None], *, on_stuck: Callable[[], None], enabled: bool
    ) -> None:
        self._timeout_s, self._on_overdue, self._on_stuck, self._enabled = timeout_s, on_overdue, on_stuck, enabled
        self._left = threading.Event()
        self._before: Any = None

    def __enter__(self) -> None:
        if self._enabled:
            self._before = signal.signal(signal.SIGUSR2, self._interrupt)
            threading.Thread(target=self._watch, name="rig-watchdog", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._left.set()
        if self._enabled:
            signal.signal(signal.SIGUSR2, self._before)

    def _watch(self) -> None:
        if self._left.wait(self._timeout_s):
            return
        self._on_overdue()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)
        if not self._left.wait(_INTERRUPT_S):
            self._on_stuck()

    def _interrupt(self, signum: int, frame: object) -> None:
        if not self._left.is_set():
            raise Deadline


def open_shell(*, run: str, seat: str, device: str, seed: int, spools: str) -> Shell:
    """The worker of this process in its shell; imports what it imports. `Incomplete` if its GPU is of no use."""
    from rig.worker import Worker

    try:
        worker = Worker(seat=seat, device=device, seed=seed)
    except Exception as error:
        if device == "cpu":
            raise
        raise Incomplete(f"a GPU seat could not become ready: {type(error).__name__}: {error}") from error
    incarnation = uuid.uuid4().hex[:8]
    spool = Spool(path_of(run, incarnation, folder=spools))
    return Shell(worker, run=run, seat=seat, incarnation=incarnation, spool=spool)
