"""A process apart: what a target does to it costs neither the seat nor what was found."""

import os
import time
from pathlib import Path

import pytest
from cells import spec
from doubles import planned
from found import counted, judged, shown, written
from targets.faults import planted

from rig.controls import defaults
from rig.worker import Worker

EARLY = planted("one_step_early")
ONE = planned(scenario="slot_reuse", params=defaults("slot_reuse") | {"num_steps": 30}, seed=3, timeout_s=60.0)


def with_end(end, *, passes):
    """The early pool, in whose process `end` happens at the first publish of the pass after so many."""
    lines = "import os, signal, sys, time\n_passes = vars(sys).setdefault('rig_test_passes', [])\n_passes.append(1)\n"
    at = "        x = torch.as_tensor(x, dtype=self.dtype)\n"
    apart = "sys.argv[0].endswith('apart_process.py')"
    return lines + EARLY.replace(at, f"        if len(_passes) > {passes} and {apart}:\n            {end}\n{at}")


def test_a_replay_made_apart_is_the_one_made_here(tmp_path, capsys):
    here, apart = (written(tmp_path / str(a), judged(spec("mine", EARLY), "slot_reuse", apart=a)) for a in (0, 1))
    assert [f["ops"] for _, f in apart[1]] == [f["ops"] for _, f in here[1]]
    assert len(counted(apart[1][0][1])) <= 8
    assert shown(capsys, apart[1][0][0], "--times", 3)[1][-1] == "reproduced 3 of 3"


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "ended its process with SIGSEGV"),
        ("os._exit(3)", "ended its process with exit 3"),
        ("time.sleep(1000)", "did not end in time"),
    ],
)
def test_a_target_that_ends_or_blocks_the_process_leaves_the_shortest_list_before(end, said, tmp_path):
    shrink_s = 2.0 if "sleep" in end else 20.0
    records = judged(spec("mine", with_end(end, passes=4)), "slot_reuse", apart=True, shrink_s=shrink_s)
    _, files = written(tmp_path, records)
    assert files[0][1]["note"] == f"a shorter list {said}: it may get shorter still"
    assert 0 < files[0][1]["num_ops"]["after"] < files[0][1]["num_ops"]["before"]
    _, files = written(
        tmp_path / "at_once", judged(spec("mine", with_end(end, passes=0)), "slot_reuse", apart=True, shrink_s=shrink_s)
    )
    assert (files[0][1]["ops"], files[0][1]["note"]) == (None, f"not shrunk: performing it again {said}")


def test_what_a_target_prints_is_no_answer_and_nothing_outlives_the_worker(tmp_path):
    loud = "print('{\"body\": 1}')\n" + EARLY
    worker = Worker(seat="s0", device="cpu", seed=7)
    for _ in range(2):  # the second time by the same process
        bodies = list(worker.run(ONE | {"shrink_s": 20.0}, spec("mine", loud)))
        assert [body["type"] for body in bodies if body["type"] == "replay"]
        pid = worker._apart._process.pid
    assert pid == worker._apart._process.pid
    worker.close()
    assert not Path(f"/proc/{pid}").exists()


def test_the_process_ends_with_its_parent(tmp_path):
    child = os.fork()
    if child == 0:
        worker = Worker(seat="s0", device="cpu", seed=7)
        list(worker.run(ONE | {"shrink_s": 1.0}, spec("mine", EARLY)))
        (tmp_path / "pid").write_text(str(worker._apart._process.pid))
        os._exit(0)
    os.waitpid(child, 0)
    pid = (tmp_path / "pid").read_text()
    end = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()
