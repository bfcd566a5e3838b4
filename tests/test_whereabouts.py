"""stacks/where.txt: stage and step of every seat, its innermost call, and who waits for whom."""

import ctypes
import faulthandler
import re
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from rig.whereabouts import innermost, where

WORK = """\
Thread 0x1 [ray] (most recent call first):
  File "/x/ray/worker.py", line 1 in main_loop

Current thread 0x2 (most recent call first):
  File "<mine.py>", line 9 in stuck
  File "/x/rig/target.py", line 7 in make
  File "/x/rig/worker.py", line 5 in run
"""
APART = """\
Thread 0x2 (most recent call first):
  File "/x/rig/apart.py", line 108 in _lines
  File "/x/rig/worker.py", line 5 in run
"""
IDLE = 'Thread 0x1 (most recent call first):\n  File "/x/ray/worker.py", line 1 in main_loop\n'
AT = {"assignment": "a@s0", "step": 12, "stage": "verify"}


def test_each_seat_has_a_line_and_the_waiting_is_told() -> None:
    stacks = {"s0": WORK, "s1": IDLE, "s2": None, "s3": APART}
    at = {"s0": AT, "s3": AT | {"stage": "shrink"}}
    jobs = {"s0": "a@s0", "s2": "a@s2", "s3": "a@s3"}
    assert where(stacks, at=at, jobs=jobs, silent=["s0", "s2"]).splitlines() == [
        "s0  a@s0  verify step 12, and says nothing now; in stuck (mine.py:9)",
        "s1  idle",
        "s2  a@s2  said nothing yet, and says nothing now; its node does not answer",
        "s3  a@s3  shrink step 12; in _lines (apart.py:108)",
        "",
        "the driver waits for s0, s2, s3",
        "s1 waits for the driver",
        "s3 waits for its process apart",
        "no seat waits for another one",
    ]


@pytest.mark.parametrize(
    ("text", "call"), [(WORK, "stuck (mine.py:9)"), (WORK + APART, "_lines (apart.py:108)"), ("", "")]
)
def test_innermost_call_is_of_the_last_dump(text: str, call: str) -> None:
    assert innermost(text) == call
    assert innermost(IDLE) == ""


def in_python(over: threading.Event) -> None:
    while not over.is_set():
        time.sleep(0.01)


def in_c(over: threading.Event) -> None:
    ctypes.CDLL(None).usleep(300_000)


@pytest.mark.parametrize("hang", [in_python, in_c])
def test_real_stack_of_a_hang_is_understood(hang: Callable[[Any], None]) -> None:
    over = threading.Event()
    source = "def run(hang, over):\n    hang(over)\n"
    names: dict[str, Any] = {}
    exec(compile(source, "/x/rig/worker.py", "exec"), names)
    thread = threading.Thread(target=names["run"], args=(hang, over))
    thread.start()
    with tempfile.TemporaryFile("w+") as file:
        time.sleep(0.05)
        faulthandler.dump_traceback(file=file, all_threads=True)
        file.seek(0)
        text = file.read()
    over.set()
    thread.join()
    assert re.fullmatch(rf"{hang.__name__} \(test_whereabouts.py:\d+\)", innermost(text)), text
