"""The command line: exits, one message for bad usage, and the last line that other tools read."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from doubles import Tale, planned

from rig.__main__ import main
from rig.records import FILE, RecordLog, read

ROOT = Path(__file__).resolve().parent.parent
LAST = re.compile(r"RIG verdict=(?P<verdict>[A-Z]+) exit=(?P<exit>\d+) report=(?P<report>/.*)")
ONE = planned()
CONFIG = """\
version: 1
name: tiny
seats: {kind: cpu}
targets: [model]
backends: [cpu]
runs:
  - scenario: slot_reuse
    sweep: {depth: [2, 3]}
    params: {num_steps: 3, rows: 4}
    timeout_s: 30
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(CONFIG)
    return path


def rig(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    return int(end.value.code or 0)


def last(text: str) -> re.Match[str]:
    match = LAST.fullmatch(text.splitlines()[-1])
    assert match, text
    return match


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["rnu"], "unknown verb 'rnu'; did you mean 'run'?"),
        (["run"], "Missing argument 'CONFIG'"),
        (["run", "x", "--sed", "1"], "No such option '--sed'"),
        (["run", "x", "--seed", "y"], "'y' is not a valid integer"),
        (["run", "smoke", "--local", "--address", "a:1"], "give one of them"),
        (["plan", "no.yaml"], "no.yaml: no such file; expected a config"),
        (["plan", "smokey"], "did you mean 'smoke'?"),
        (["list", "target"], "nothing to list called 'target'; did you mean 'targets'?"),
        (["report", "nowhere"], "nowhere/records.jsonl: cannot be read"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert rig(*arguments) == 2
    told = capsys.readouterr()
    assert says in told.err
    assert (told.out, len(told.err.splitlines())) == ("", 1)


@pytest.mark.parametrize("kind", ["scenarios", "targets", "backends", "reports", "incidents", "presets"])
def test_everything_listed_has_one_line(
    kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert rig("list", kind) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 2
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines)


def test_plan_prints_seats_controls_each_assignment_and_a_total(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rig("plan", config, "--set", "seats.expect.cpu_nodes=2", "--backend", "sim") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "seats (from expect): s0 cpu, s1 cpu" in lines
    assert any(line.startswith("controls: on every seat") for line in lines)
    assert sum("slot_reuse:model:sim:depth=" in line for line in lines) == 4
    assert lines[-1] == "total: 4 assignments on 2 seats"


def test_local_run_passes_and_its_records_are_judged_again_alike(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert rig("run", config, "--local", "--out", out, "--seed", "5") == 0
    told = capsys.readouterr()
    assert last(told.out).groupdict() == {"verdict": "PASS", "exit": "0", "report": str(out / "report.json")}
    first = (out / "report.json").read_bytes()
    report = json.loads(first)
    assert (report["run"]["seed"], report["verdict_counts"]["PASS"]) == (5, 2)
    assert all(control["caught"] for control in report["controls"])
    assert report["coverage"]["checked_words"] > 0
    assert rig("report", out) == 0
    assert last(capsys.readouterr().out)["verdict"] == "PASS"
    assert (out / "report.json").read_bytes() == first


@pytest.mark.parametrize(
    ("only", "count"), [("slot_reuse:model:cpu:depth=2,num_steps=3,rows=4", 1), ("*depth=3*@s0", 1), ("*", 2)]
)
def test_only_runs_what_it_names(config: Path, tmp_path: Path, only: str, count: int) -> None:
    assert rig("run", config, "--local", "--out", tmp_path / "out", "--only", only, "--set", "controls=false") == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert len(report["assignments"]) == count
    assert report["run"]["overrides"] == ["controls=false"]


def test_usage_error_leaves_no_folder_behind(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert rig("run", config, "--local", "--only", "nothing") == 2
    assert rig("run", config, "--address", "127.0.0.1:1") == 2
    assert "connecting to Ray at 127.0.0.1:1\n" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before


def test_folder_in_use_is_refused_and_untouched(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine.txt").write_text("mine")
    assert rig("run", config, "--local", "--out", tmp_path / "used") == 2
    assert "not empty" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["mine.txt"]


def test_failing_target_exits_1_with_a_file_per_finding(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert (
        rig(
            "run",
            config,
            "--local",
            "--out",
            out,
            "--target",
            "faulty:stale_alias",
            "--set",
            "runs.0.params.num_steps=9",
        )
        == 1
    )
    told = capsys.readouterr().out
    assert last(told)["verdict"] == "FAIL"
    report = json.loads((out / "report.json").read_text())
    first = report["findings"][0]
    assert first["kind"] == "stale_alias"
    assert told.index("stale_alias: ") < told.index("scenario ")
    failure = yaml.safe_load((out / first["replay"]).read_text())
    assert failure["assignment"]["id"] == first["assignment"]
    assert failure["command"].startswith(f"python -m rig run {config} ")
    assert "--target faulty:stale_alias" in failure["command"]
    assert len(list((out / "failures").iterdir())) == len(report["findings"])


@pytest.mark.parametrize(
    "source",
    [
        "raise ImportError('no such thing')",
        "x = 1",
        "raise SystemExit(3)",
        "def UvaBufferPool(*a, **k): raise KeyError(1)",
    ],
)
def test_target_file_that_breaks_is_a_fail_that_says_so(source: str, config: Path, tmp_path: Path) -> None:
    target = tmp_path / "mine.py"
    target.write_text(source)
    assert rig("run", config, "--local", "--out", tmp_path / "out", "--target", target) == 1
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["verdict_counts"]["FAIL"] == 2
    assert all(a["reason"] for a in report["assignments"])


def test_gpu_backend_on_a_cpu_seat_is_a_skip_with_its_reason(config: Path, tmp_path: Path) -> None:
    assert rig("run", config, "--local", "--out", tmp_path / "out", "--backend", "cuda_uva") == 4
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["verdict"] == "SKIP"
    assert "needs a GPU" in report["assignments"][0]["reason"]


@pytest.mark.parametrize("end", [">&-", ">&- 2>&-", ">/dev/full"])
def test_stdout_that_is_closed_or_full_does_not_change_the_exit(end: str, config: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "rig", "run", str(config), "--local", "--out", str(tmp_path / "out")]
    process = subprocess.run(["/bin/sh", "-c", f"exec {shlex.join(words)} {end}"], cwd=ROOT, capture_output=True)
    assert process.returncode == 0
    assert read(tmp_path / "out")[-1]["type"] == "end"


def test_name_that_stdout_cannot_encode_is_escaped(config: Path, tmp_path: Path) -> None:
    (tmp_path / "p\xfcffer.py").write_text("x = 1")
    words = ["run", str(config), "--local", "--out", str(tmp_path / "out"), "--target", str(tmp_path / "p\xfcffer.py")]
    process = subprocess.run(
        [sys.executable, "-m", "rig", *words],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 1
    assert last(process.stdout)["verdict"] == "FAIL"


@pytest.mark.parametrize(("verdict", "code"), [("PASS", 0), ("FAIL", 1), ("HANG", 5), ("ERROR", 70)])
def test_report_exits_like_the_run(verdict: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = RecordLog(tmp_path / FILE)
    log.append(Tale([ONE]).tell(ONE, verdict=verdict).ends())
    log.close()
    assert rig("report", tmp_path) == code
    assert last(capsys.readouterr().out)["verdict"] == verdict


@pytest.mark.parametrize(
    ("compare", "bar", "exit_code", "verdict"),
    [("model", 1e-6, 0, "PASS"), ("model", 80_000, 3, "FAIL"), ("no_such.peer", 2, 4, "SKIP")],
)
def test_a_comparison_ends_with_its_exit(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    compare: str,
    bar: float,
    exit_code: int,
    verdict: str,
) -> None:
    path = tmp_path / "c.yaml"
    entry = {"scenario": "hot_path", "mode": "measure", "compare": compare, "ratio_min": {"elements_each": bar}}
    params = {"cases": ["elements_each"], "rounds": 2, "round_ms": 0.1}
    about = {"version": 1, "name": "c", "seats": {"kind": "cpu"}, "backends": ["cpu"], "controls": False}
    path.write_text(yaml.safe_dump(about | {"runs": [entry | {"params": params}]}))
    assert rig("run", path, "--local", "--out", tmp_path / "out") == exit_code
    out = capsys.readouterr().out
    assert last(out)["verdict"] == verdict
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert ("times as fast as model" in out) == (verdict == "FAIL")
    assert set(report["run"]["baselines"]) == {compare}
    assert set(report["run"]["targets"]) == {"staging"}
    assert rig("table", tmp_path / "out") == (2 if verdict == "SKIP" else 0)
    assert rig("report", tmp_path / "out") == exit_code


def test_a_failed_comparison_is_replayed_by_its_command(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "version: 1\nname: c\nseats: {kind: cpu}\nbackends: [cpu]\ncontrols: false\nruns:\n"
        "  - scenario: engine_step\n    mode: measure\n    compare: model\n    ratio_min: {steps: 80000}\n"
        "    params: {rounds: 1, num_steps: 2, max_requests: 8, warm_up_steps: 2, start_requests: 2}\n"
    )
    assert rig("run", path, "--local", "--out", tmp_path / "out") == 3
    failure = yaml.safe_load((tmp_path / "out" / "failures" / "1.yaml").read_text())
    command = shlex.split(failure["command"])
    assert "model" not in command[: command.index("--only")]
    assert rig(*command[3:], "--out", tmp_path / "again") == 3
