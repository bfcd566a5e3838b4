"""`rig replay`: what its exits mean."""

import subprocess
import sys
from pathlib import Path

import pytest
from cells import spec
from found import file_of, judged, rig, shown, written
from targets.faults import PLAIN, planted

ROOT = Path(__file__).resolve().parent.parent


def test_its_operations_are_one_a_line_and_printed_alone_if_asked(tmp_path, capsys):
    path = file_of(tmp_path)
    code, lines = shown(capsys, path, "--ops")
    assert code == 0
    assert [line.split()[0] for line in lines] == ["make", "step", "publish", "read", "step", "publish"]
    assert "  step number=2 in_flight=2" in lines
    assert sum(line.startswith("- {op: ") for line in path.read_text().splitlines()) == len(lines)


def test_another_fault_is_neither_fixed_nor_found(tmp_path, capsys):
    path = file_of(tmp_path)
    (tmp_path / "other.py").write_text(planted("wrong_dtype"))
    code, lines = shown(capsys, path, "--target", tmp_path / "other.py")
    assert code == 4
    assert lines[-2].startswith("try 1: dtype: ")
    assert lines[-1] == "reproduced 0 of 1"


def test_a_race_that_is_not_looked_at_is_not_called_fixed(tmp_path, capsys):
    path = file_of(tmp_path)
    (tmp_path / "ordered.py").write_text(f'{PLAIN}\nRIG_READS = "stream_ordered"\n')
    code, lines = shown(capsys, path, "--target", tmp_path / "ordered.py")
    assert code == 4
    assert lines[-2].startswith("try 1: races were not judged here: ")


def test_a_fault_that_comes_and_goes_is_unclear(tmp_path, capsys):
    path = file_of(tmp_path)
    flag = tmp_path / "flag"
    before, after = "% self.max_concurrency\n", "% (self.max_concurrency - turn())\n"
    turn = f"import os\ndef turn():\n    return int(os.path.exists({str(flag)!r}))\n"
    turn += f"os.remove({str(flag)!r}) if turn() else open({str(flag)!r}, 'w').close()\n"
    (tmp_path / "flaky.py").write_text(PLAIN.replace(before, after) + turn)
    code, lines = shown(capsys, path, "--times", 4, "--target", tmp_path / "flaky.py")
    assert (code, lines[-1]) == (4, "reproduced 2 of 4")


def test_a_file_for_a_gpu_says_so_where_there_is_none(tmp_path, capsys, monkeypatch):
    records = judged(spec("mine", planted("one_step_early")), "slot_reuse")
    records[0]["plan"][0]["backend"] = "cuda_uva"
    _, files = written(tmp_path, records)
    monkeypatch.setattr("rig.gpus.visible", dict)
    code, lines = shown(capsys, files[0][0])
    assert code == 4
    assert lines[-1] == "not replayed: backend cuda_uva needs a GPU, and this machine has none"


@pytest.mark.parametrize(
    ("source", "says"),
    [("raise ValueError('x')", "target bad cannot be imported: ValueError: x"), (None, "no such file")],
)
def test_a_target_that_cannot_be_loaded_is_not_called_fixed(source, says, tmp_path, capsys):
    path, bad = file_of(tmp_path), tmp_path / "bad.py"
    if source:
        bad.write_text(source)
    assert rig("replay", path, "--target", bad) == 2
    assert says in capsys.readouterr().err


def test_a_replay_that_does_not_end_is_a_hang(tmp_path):
    records = judged(spec("mine", planted("one_step_early")), "slot_reuse")
    records[0]["plan"][0]["timeout_s"] = 0.2
    _, files = written(tmp_path, records)
    (tmp_path / "stuck.py").write_text(PLAIN.replace("        self._current = 0\n", "        while True: pass\n"))
    driver = (
        "import sys\nfrom rig import replay\nfrom rig.__main__ import main\nreplay.GRACE_S = 0.1\nmain(sys.argv[1:])"
    )
    words = [sys.executable, "-c", driver, "replay", str(files[0][0]), "--target", str(tmp_path / "stuck.py")]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 5, ended.stderr
    assert ended.stdout.splitlines()[-1] == "try 1: no end within timeout_s = 0.2"
    assert "stuck" in ended.stderr
