"""Processes with a time limit, and proofs in them: one that hangs is ended and one that crashes is passed over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

_REAP_S = 0.2  # a process stuck in the driver does not even die; nobody waits for it
_PROVE = (sys.executable, "-m", "rig.prove")


class Answer(NamedTuple):
    """What a proof came to: `told` has a state and a reason, and what else the proof tells."""

    proof: str
    told: dict[str, Any]


class Trouble(NamedTuple):
    """How a process ended, if it did not end well: state "hang", "crash" or "failed"."""

    state: str
    reason: str


class Process:
    """A command in a session of its own, whose output goes to files, so that nobody waits for a pipe."""

    def __init__(
        self, command: Sequence[str], *, folder: Path, name: str, env: Mapping[str, str] | None = None
    ) -> None:
        self.out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        self._begin = time.monotonic()
        self._refused: Trouble | None = None
        with self.out.open("wb") as out, self._err.open("wb") as err:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
            try:
                self._popen = subprocess.Popen(command, env=env, start_new_session=True, **streams)
            except OSError as error:
                self._refused = Trouble("failed", f"{command[0]} does not start: {error.strerror}")

    def end(self, deadline: float) -> Trouble | None:
        """Wait until `deadline` of time.monotonic, then end it; None if it ended well by itself."""
        if self._refused is not None:
            return self._refused
        try:
            code = self._popen.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._popen.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._popen.wait(_REAP_S)
            return Trouble("hang", f"no answer within {time.monotonic() - self._begin:.0f} s")
        if code < 0:
            return Trouble("crash", f"its process crashed with {_signal(-code)}")
        return Trouble("failed", f"exit {code}: {self._last_words()}") if code else None

    def _last_words(self) -> str:
        text = "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in (self.out, self._err))
        return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "and no word")[:300]


class Prover:
    """Some proofs, one after the other in one process. After a crash the rest is tried in a new one."""

    def __init__(
        self,
        proofs: Sequence[str],
        *,
        folder: Path,
        name: str,
        env: Mapping[str, str] | None = None,
        command: Sequence[str] = _PROVE,
    ) -> None:
        self._left, self._folder, self._name, self._env, self._command = list(proofs), folder, name, env, command
        self._num_starts = 0
        self._start()

    def answers(self, deadline: float) -> list[Answer]:
        """An answer for every proof, by `deadline` of time.monotonic."""
        found: list[Answer] = []
        while self._left:
            trouble = self._process.end(deadline)
            lines = self._lines()
            found += [Answer(proof, told) for proof, told in lines if told is not None]
            self._left = self._left[sum(told is not None for _, told in lines) :]
            if not self._left:
                break
            trouble = trouble or Trouble("failed", "its process ended early, without a word")
            begun = len(lines) % 2 == 1
            found.append(Answer(self._left.pop(0), trouble._asdict()))
            if not begun or trouble.state == "hang" or time.monotonic() >= deadline:
                state, reason = ("untried", f"not reached: {trouble.reason}") if begun else trouble
                found += [Answer(proof, {"state": state, "reason": reason}) for proof in self._left]
                break
            self._start()
        return found

    def _start(self) -> None:
        self._num_starts += 1
        name = f"{self._name}-{self._num_starts}"
        self._path = self._folder / f"{name}.jsonl"
        command = [*self._command, str(self._path), *self._left]
        self._process = Process(command, folder=self._folder, name=name, env=self._env)

    def _lines(self) -> list[tuple[str, dict[str, Any] | None]]:
        """What the process wrote; a last line that was cut off counts for nothing."""
        text = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
        return [(proof, told) for proof, told in map(json.loads, text.splitlines()[: text.count("\n")])]


def environment(**changes: str) -> dict[str, str]:
    """This process's environment, in which its own packages are found, with changes."""
    paths = [str(Path(__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | changes


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
