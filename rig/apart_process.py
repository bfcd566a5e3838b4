"""The process in which findings are shrunk: `python -m rig.apart_process DEVICE SEED`.

It reads requests from standard input, one a line: a target, which it imports, then findings in a cell. To the one it
answers "ready", to the other bodies of records, each a draft or the last word on its finding, and null at the end.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from functools import partial
from typing import IO, Any

import torch

from rig import minimum
from rig.cause import Finding
from rig.judge import Cell, device_of
from rig.loading import ImportFailedError, loaded
from rig.worker import Worker


def _say(answers: IO[str], body: dict[str, Any], *, is_draft: bool) -> None:
    print(json.dumps({"body": body, "is_draft": is_draft}), file=answers, flush=True)


def main(device: str, seed: int) -> None:
    """Answer requests until standard input ends or the parent does."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: nothing outlives the seat
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a target prints is no answer
    worker = Worker(seat="apart", device=device, seed=seed)  # prepares this process
    for line in sys.stdin:
        asked = json.loads(line)
        if "spec" in asked:
            spec = asked["spec"]
            with contextlib.suppress(ImportFailedError), loaded(spec, device=torch.device(device)):
                pass  # what it imports takes its time only once
            print(json.dumps("ready"), file=answers, flush=True)
            continue
        cell = Cell(**asked["cell"], device=device_of(asked["cell"]["backend"], device))
        found = [(Finding(**finding), step) for finding, step in asked["found"]]
        until_ns = time.perf_counter_ns() + int(asked["seconds"] * 1e9)
        draft = partial(_say, answers, is_draft=True)
        for body in minimum.replays(cell, spec, found, until_ns=until_ns, draft=draft):
            _say(answers, body, is_draft=False)
        print(json.dumps(None), file=answers, flush=True)
    worker.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
