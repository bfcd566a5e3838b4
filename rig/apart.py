"""Findings shrunk in a process of its own, which a target may crash or block: what was found is safe, and so the seat.

This is the worker's end; the other one is `rig.apart_process`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from rig.cause import Finding
from rig.judge import Cell
from rig.minimum import without_ops
from rig.provers import environment

_START_S = 30.0  # until the process has imported torch and has its device
_GRACE_S = 2.0  # beyond the time it was given


class Apart:
    """One such process, started when it is first needed and anew when it is gone. One thread calls it."""

    def __init__(self, *, device: str, seed: int) -> None:
        self._device, self._seed = device, seed
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""

    def replays(
        self,
        cell: Cell,
        spec: Mapping[str, Any],
        found: Sequence[tuple[Finding, int]],
        *,
        seconds: float,
        latest_ns: int,
    ) -> Iterator[dict[str, Any]]:
        """As `rig.minimum.replays`, within so many seconds of shrinking; starting the process and importing the target
        do not count, but all ends by `latest_ns`. A list that ends the process or blocks it leaves the shortest one
        before it.
        """
        firsts: dict[str, tuple[Finding, int]] = {}
        for finding, step in found:
            firsts.setdefault(finding.kind, (finding, step))
        left = list(firsts.values())
        while left:
            draft: dict[str, Any] | None = None
            rest_s = (latest_ns - time.perf_counter_ns()) / 1e9
            trouble = "was not tried: there was no time left"
            if min(seconds, rest_s) > 0 and self._is_ready(spec, within_s=min(_START_S, rest_s)):
                begin = time.monotonic()
                for body, is_draft in self._answers(cell, left, min(seconds, rest_s)):
                    draft = body if is_draft else None
                    if not is_draft:
                        yield body
                        left = left[1:]
                seconds -= time.monotonic() - begin
                trouble = self._trouble() if left else ""
            if left:
                yield _cut_short(left[0][0], draft, trouble)
                left = left[1:]

    def close(self) -> None:
        """End the process, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        self._process = None

    def _is_ready(self, spec: Mapping[str, Any], *, within_s: float) -> bool:
        """Let the process import a target; False if it did not come back from that."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        self._send({"spec": dict(spec)})
        return next(self._lines(time.monotonic() + within_s), None) is not None

    def _answers(
        self, cell: Cell, found: Sequence[tuple[Finding, int]], seconds: float
    ) -> Iterator[tuple[dict[str, Any], bool]]:
        """The answers to one request, until its last one or until the process is gone or late."""
        about = {key: value for key, value in asdict(replace(cell, ops=None)).items() if key != "device"}
        self._send({"cell": about, "found": [[asdict(finding), step] for finding, step in found], "seconds": seconds})
        for line in self._lines(time.monotonic() + seconds + _GRACE_S):
            answer = json.loads(line)
            if answer is None:
                return
            yield answer["body"], answer["is_draft"]

    def _send(self, request: Mapping[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the process is gone, as the missing answer shows
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def _lines(self, deadline: float) -> Iterator[bytes]:
        assert self._process is not None
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while True:
            while b"\n" in self._rest:
                line, _, self._rest = self._rest.partition(b"\n")
                yield line
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(pipe, 1 << 16) if ready else b""
            if not data:
                return
            self._rest += data

    def _start(self) -> None:
        self.close()
        self._rest = b""
        command = [sys.executable, "-m", "rig.apart_process", self._device, str(self._seed)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment())

    def _trouble(self) -> str:
        """How the process ended; one that did not is ended."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.2)
        code = self._process.poll()
        self.close()
        if code is None:
            return "did not end in time"
        return f"ended its process with {signal.Signals(-code).name if code < 0 else f'exit {code}'}"


def _cut_short(finding: Finding, draft: dict[str, Any] | None, trouble: str) -> dict[str, Any]:
    if draft is None:
        return without_ops(finding, f"not shrunk: performing it again {trouble}")
    return draft | {"note": f"a shorter list {trouble}: it may get shorter still"}
