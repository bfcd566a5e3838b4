"""What --local promises about deadlines and signals: as much as one process can do about itself."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

NAMES = ["UvaBuffer", "NonUvaBuffer", "UvaBufferPool", "UvaBackedTensor", "StagedWriteTensor", "FusedStagedWriter"]
CONFIG = """\
version: 1
name: stuck
seats: {kind: cpu}
targets: [TARGET]
backends: [cpu]
controls: false
runs:
  - scenario: slot_reuse
    sweep: {depth: [2, 3]}
    params: {num_steps: 3}
    timeout_s: TIMEOUT
"""
# Short graces, so that the tests are short too.
DRIVER = """\
import sys
from rig import local
from rig.__main__ import main
local.GRACE_S, local._INTERRUPT_S, local._RESORT_S = 0.2, 0.4, 0.6
from rig import dispatch
dispatch.HEARTBEAT_S = 0.3
main(sys.argv[1:])
"""


def launch(folder: Path, body: str, *, timeout_s: float) -> "subprocess.Popen[str]":
    """A local run of a target whose constructors run `body`."""
    (folder / "mine.py").write_text(
        f"import time\ndef stuck(*a, **k):\n    {body}\n"
        + "".join(f"{name} = stuck\n" for name in NAMES)
        + "def set_default_max_concurrency(n): pass\ndef async_tensor_h2d(*a, **k): pass\n"
    )
    text = CONFIG.replace("TARGET", str(folder / "mine.py")).replace("TIMEOUT", str(timeout_s))
    (folder / "c.yaml").write_text(text)
    command = [sys.executable, "-c", DRIVER, "run", str(folder / "c.yaml"), "--local", "--out", str(folder / "out")]
    root = Path(__file__).resolve().parent.parent
    return subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("body", ["time.sleep(600)", "[0 for _ in iter(int, 1)]"])
def test_deadline_is_a_hang_with_stacks(body: str, tmp_path: Path) -> None:
    process = launch(tmp_path, body, timeout_s=0.3)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 5
    assert out.splitlines()[-1].startswith("RIG verdict=HANG exit=5 report=")
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [a["verdict"] for a in report["assignments"]] == ["HANG", "INCOMPLETE"]
    assert "mine.py" in (tmp_path / "out" / "stacks" / "s0.txt").read_text()
    where = (tmp_path / "out" / "stacks" / "where.txt").read_text()
    assert "verify step 0; in " in where
    assert "stuck (mine.py:3)" in where or "<listcomp> (mine.py:3)" in where
    assert {path.name for path in (tmp_path / "out" / "stacks").iterdir()} == {"s0.txt", "where.txt"}


def test_call_that_keeps_the_interpreters_lock_leaves_stacks_and_records(tmp_path: Path) -> None:
    process = launch(tmp_path, "import ctypes; ctypes.PyDLL(None).sleep(600)", timeout_s=0.3)
    process.communicate(timeout=60)
    assert process.returncode == 1
    assert "mine.py" in (tmp_path / "out" / "stacks" / "s0-last.txt").read_text()
    command = [sys.executable, "-m", "rig", "collect", str(tmp_path / "out"), "--local"]
    root = Path(__file__).resolve().parent.parent
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout.splitlines()[-1][:34]) == (4, "RIG verdict=INCOMPLETE exit=4 repo")


def test_run_that_ends_well_leaves_neither_stacks_nor_spool(tmp_path: Path) -> None:
    process = launch(tmp_path, "raise NotImplementedError", timeout_s=10)
    process.communicate(timeout=60)
    assert process.returncode == 1
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"records.jsonl", "report.json", "failures"}


def test_target_that_swallows_everything_ends_with_the_process(tmp_path: Path) -> None:
    process = launch(
        tmp_path, "while True:\n        try: time.sleep(600)\n        except BaseException: pass", timeout_s=0.3
    )
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 5
    assert out.splitlines()[-1].startswith("RIG verdict=HANG exit=5 report=")
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [a["verdict"] for a in report["assignments"]] == ["HANG", "INCOMPLETE"]
    assert "s0 was lost during" in report["assignments"][1]["reason"]


def test_second_signal_ends_at_once_with_the_last_line(tmp_path: Path) -> None:
    swallow = "while True:\n        try: time.sleep(600)\n        except BaseException: pass"
    process = launch(tmp_path, swallow, timeout_s=60)
    assert process.stderr is not None
    for line in process.stderr:
        if "assignments" in line:
            break
    for _ in range(2):
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out.splitlines()[-1] == f"RIG verdict=INCOMPLETE exit=130 report={tmp_path / 'out' / 'report.json'}"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_keeps_the_records_and_exits_130(number: signal.Signals, tmp_path: Path) -> None:
    process = launch(tmp_path, "time.sleep(600)", timeout_s=60)
    assert process.stderr is not None
    for line in process.stderr:
        if "assignments" in line:
            break
    time.sleep(0.5)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out.splitlines()[-1].startswith("RIG verdict=INCOMPLETE exit=130 report=")
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert {a["reason"] for a in report["assignments"]} == {f"interrupted by {number.name}"}
