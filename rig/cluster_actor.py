"""The actor of one seat: a shell around a worker, with a control channel beside the work."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import platform
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray

from rig import gpus
from rig.records import Record
from rig.shell import Shell
from rig.spool import Spool, path_of

_SIGNAL_WAIT_S = 0.5
_GONE_S = 5.0
_exit = os._exit


class _Seat:
    """Lives on one seat for one run. `work` streams batches of records; `beat` and `stacks` answer while it runs."""

    def __init__(self) -> None:
        self._incarnation = uuid.uuid4().hex[:8]
        self._shell: Shell | None = None
        self._trace = trace_path(os.getpid())
        self._trace_file = self._trace.open("w", encoding="utf-8")
        faulthandler.enable(file=self._trace_file, all_threads=True)
        faulthandler.register(signal.SIGUSR1, file=self._trace_file, all_threads=True)
        os._exit = self._exit  # type: ignore[assignment]

    def identify(self) -> dict[str, Any]:
        """Where Ray put this actor: node, host, process, and the UUID of its GPU if it has one."""
        context = ray.get_runtime_context()
        ids = context.get_accelerator_ids().get("GPU", [])
        where = {"node_id": context.get_node_id(), "pid": os.getpid()}
        return where | {"gpu": gpus.uuid_of(str(ids[0])) if ids else ""}

    def prepare(self, *, run: str, seat: str, kind: str, seed: int, spools: str | None) -> Record:
        """Make the worker, and its spool in the folder `spools`; returns the seat record. Slow: imports what the worker
        imports.
        """
        if kind == "cpu":
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray hides no GPU from an actor that asked for none
        from rig.worker import Worker

        worker = Worker(seat=seat, device="cuda:0" if kind == "gpu" else "cpu", seed=seed)
        spool = Spool(path_of(run, self._incarnation, folder=spools))
        self._shell = Shell(worker, run=run, seat=seat, incarnation=self._incarnation, spool=spool)
        return self._shell.describe() | {"kind": kind, "versions": versions(), "spool": str(spool.path)}

    def work(self, job: dict[str, Any]) -> Iterator[list[Record]]:
        """Batches of the records of one job: all controls, or one assignment."""
        assert self._shell is not None
        if job["assignment"] is None:
            yield from self._shell.controls(job["backends"])
        else:
            yield from self._shell.run(job["assignment"], job["target"])

    @ray.method(concurrency_group="ctl")
    def beat(self) -> dict[str, Any]:
        """A sign of life: which assignment, which step."""
        return self._shell.progress() if self._shell else {"assignment": None, "step": 0}

    @ray.method(concurrency_group="ctl")
    def stacks(self) -> str:
        """The stacks of all threads of this process."""
        with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
            faulthandler.dump_traceback(file=file, all_threads=True)
            file.seek(0)
            return file.read()

    def _exit(self, status: int) -> None:
        """os._exit in this process: Ray does not see the code, so it is noted before the process ends."""
        self._trace_file.write(f"os._exit({status}) was called\n")
        faulthandler.dump_traceback(file=self._trace_file, all_threads=False)
        self._trace_file.flush()
        _exit(status)

    def close(self, *, keep_spool: bool) -> None:
        """Let the worker go, and leave no file behind but a spool that somebody may want."""
        try:
            if self._shell is not None:
                self._shell.close(keep_spool=keep_spool)
        finally:
            faulthandler.unregister(signal.SIGUSR1)
            faulthandler.enable()
            os._exit = _exit
            self._trace_file.close()
            self._trace.unlink(missing_ok=True)


def _gpu_memory(uuid: str) -> int | None:
    """On a seat's node, the MiB of its GPU that are in use; None where there is no GPU, or nobody knows."""
    return gpus.used_mib(uuid) if uuid else None


def _aftermath(pid: int, uuid: str) -> dict[str, Any]:
    """On a seat's node, whether its process is gone, waited for a while, and what memory of its GPU is in use then."""
    deadline = time.monotonic() + _GONE_S
    while not (is_gone := _is_gone(pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return {"pid": pid, "is_gone": is_gone, "gpu_used_mib": _gpu_memory(uuid)}


def _is_gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has reaped yet has."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):  # it ended in between, or there is no /proc: the next look tells
        return False


def _last_words(pid: int, *, is_alive: bool) -> str:
    """On a seat's node, what its process left in its fault trace; the file of a dead process is removed.

    A process that is alive and does not answer is asked for its stacks by a signal, which works even while it holds the
    interpreter's lock.
    """
    path = trace_path(pid)
    if is_alive:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGUSR1)
        time.sleep(_SIGNAL_WAIT_S)
    with contextlib.suppress(OSError):
        text = path.read_text(encoding="utf-8", errors="replace")
        if not is_alive:
            path.unlink()
        return text
    return ""


# Ray's own types know neither concurrency groups nor keyword arguments of remote functions.
_remote: Any = ray.remote
SeatActor = _remote(max_restarts=0, max_task_retries=0, concurrency_groups={"ctl": 1})(_Seat)
last_words = _remote(num_cpus=0, max_retries=0)(_last_words)
gpu_memory = _remote(num_cpus=0, max_retries=0)(_gpu_memory)
aftermath = _remote(num_cpus=0, max_retries=0)(_aftermath)


def trace_path(pid: int) -> Path:
    """Where the seat process `pid` of this machine writes its stacks when it crashes."""
    folder = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()  # the first is a local cluster's own
    return Path(folder) / f"rig-trace-{pid}.txt"


def versions() -> dict[str, str]:
    """What must be alike on all seats and the driver."""
    return {"ray": ray.__version__, "python": platform.python_version()}
