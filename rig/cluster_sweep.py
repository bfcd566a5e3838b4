"""What ends a local cluster if its driver is killed: a small process that waits for that, then sweeps.

Run as a script with the cluster's temp folder and the driver's process id; the driver holds the other end of its
standard input, so the kernel tells when the driver is gone, however it went. Ray's raylets die with the driver, but
their agents would stay for a minute and more, and the folder for ever. Needs nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_DONE_S = 10.0


@contextlib.contextmanager
def sweeping(folder: Path) -> Iterator[None]:
    """Inside the block a killed driver is noticed; at its end the folder is swept in any case."""
    command = [sys.executable, "-S", "-E", __file__, str(folder), str(os.getpid())]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        try:
            process.communicate(timeout=_DONE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def sweep(folder: Path, *, spared: set[int]) -> None:
    """Kill every process that has a file of `folder` open, except those `spared`, then remove the folder."""
    for pid in _holders(folder) - spared:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def _holders(folder: Path) -> set[int]:
    """Processes with an open file below `folder`; none where there is no /proc."""
    found = set()
    for links in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            targets = [os.readlink(link) for link in links.iterdir()]
            if any(target.startswith(f"{folder}{os.sep}") for target in targets):
                found.add(int(links.parent.name))
    return found


if __name__ == "__main__":
    sys.stdin.read()
    sweep(Path(sys.argv[1]), spared={os.getpid(), int(sys.argv[2])})
