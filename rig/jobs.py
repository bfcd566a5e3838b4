"""A submitted job as seen from here: followed to its end through a connection that may break, and stopped."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

LOST_S = 120.0  # without any answer
_LOG_LOST_S = 10.0  # a job that is over may have taken the node with its log along
_POLL_S = 0.5
_LINE = re.compile(r"RIG verdict=([A-Z]+) exit=(\d+) report=(.+)")


class Unreachable(Exception):
    """The job server did not answer, or not as it should; it may do so later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What Ray says of a job; `exit_code` is its command's, and `node` where that runs."""

    status: str
    message: str = ""
    exit_code: int | None = None
    node: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing of it runs any more."""
        return self.status in ("SUCCEEDED", "FAILED", "STOPPED")


class Jobs(Protocol):
    """A job server. Every method raises `Unreachable`."""

    def submit(
        self, job_id: str, *, entrypoint: str, archive: Path, metadata: Mapping[str, str], node: str | None = None
    ) -> None:
        """Start a job in the files of `archive`, on the head, or on the node of that id."""

    def info(self, job_id: str) -> Job:
        """What there is to say of a job now."""

    def log(self, job_id: str) -> str:
        """All that a job's command has printed."""

    def stop(self, job_id: str) -> None:
        """Ask a job to end; one that is over is left alone."""


class Log:
    """Shows each line of a growing log once; the rig's last line is kept back, for its path is one of the cluster's."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._num_shown = say, 0
        self.verdict: tuple[str, int, str] | None = None
        self.last = ""

    def show(self, text: str, is_whole: bool) -> None:
        """Say what is new in `text`, the log so far; a line without its end only once the log `is_whole`."""
        new = text[self._num_shown :]
        new = new if is_whole else new[: new.rfind("\n") + 1]
        self._num_shown += len(new)
        for line in new.splitlines():
            self.last = line or self.last
            if match := _LINE.fullmatch(line):
                self.verdict = match[1], int(match[2]), match[3]
            else:
                self._say(line)


def follow(
    jobs: Jobs,
    job_id: str,
    *,
    show: Callable[[str, bool], None],
    say: Callable[[str], None],
    check: Callable[[], None] = lambda: None,
    limit_s: float = float("inf"),
    lost_s: float = LOST_S,
) -> Job:
    """Show a job's log until it is over, or `limit_s` has passed; returns its last state. `check` raises if that is to
    end early.

    The state is read before the log, so a log that is read after the end is whole. `Unreachable` once the server has
    been silent for `lost_s`.
    """
    started = heard = time.monotonic()
    is_away = False
    while True:
        asked = time.monotonic()
        job = None
        try:
            job = jobs.info(job_id)
            show(jobs.log(job_id), job.is_over)
        except Unreachable as error:
            silent_s = time.monotonic() - heard
            if job and job.is_over and silent_s > _LOG_LOST_S:
                say(f"rig: the job is over, and the rest of its log is lost ({error})")
                return job
            if silent_s > lost_s:
                raise
            if not is_away:
                say(f"rig: no answer from the job server ({error}); asking again")
            is_away = True
            _sleep(4 * _POLL_S, check)
            continue
        heard, is_away = time.monotonic(), False
        if job.is_over or heard - started > limit_s:
            return job
        _sleep(max(_POLL_S, 10 * (heard - asked)), check)  # a long log is fetched less often


def _sleep(duration_s: float, check: Callable[[], None]) -> None:
    end = time.monotonic() + duration_s
    while (left_s := end - time.monotonic()) > 0:
        check()
        time.sleep(min(left_s, 0.1))
