"""failures/N.yaml: everything that a replay needs, and nothing that was edited or cut off."""

import json
import shutil

import pytest
import yaml
from cells import spec
from found import file_of, judged, rig, shown, written
from targets.faults import planted

from rig import failures
from rig.errors import UsageError
from rig.records import FILE


def test_a_file_holds_everything_itself(tmp_path, capsys, monkeypatch):
    (tmp_path / "run").mkdir()
    path = file_of(tmp_path / "run")
    shutil.move(path, tmp_path / "alone.yaml")
    shutil.rmtree(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert shown(capsys, "alone.yaml")[1][-1] == "reproduced 1 of 1"
    failure = yaml.safe_load((tmp_path / "alone.yaml").read_text())
    assert failure["target"]["source"] == planted("one_step_early")
    assert set(failure["assignment"]) >= {"seed", "seat", "backend", "scenario", "params"}
    assert (failure["version"], failure["rig"], failure["device"]) == (2, "0.1.0", "cpu")
    assert failure["replay"] == "rig replay failures/1.yaml"
    assert failure["command"].startswith("python -m rig run ")
    assert set(failure["expected"]) == {"kind", "tensor", "summary", "first"}


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda text: text[: len(text) // 2], "it ends before its sha256: it was cut off"),
        (lambda text: text[: text.index("sha256:") + 60], "sha256"),
        (lambda text: text[: text.index("\nops:\n") + 14], "not valid YAML"),
        (lambda text: text.replace("version: 2", "version: 1"), "a file of version 1; this rig reads version 2"),
        (lambda text: text.replace("version: 2", "version: 3"), "a file of version 3; this rig reads version 2"),
        (lambda text: text.replace("num_rows: 4", "num_rows: 5"), "the sha256 of ops does not match"),
        (lambda text: text.replace("max_concurrency or", "max_concurrency and"), "the sha256 of target does not match"),
        (lambda text: text.replace("backend: sim", "backend: cpu"), "the sha256 of assignment does not match"),
        (lambda text: text.replace("device: cpu\n", ""), "device missing"),
        (lambda text: text + "more: 1\n", "more unknown"),
        (lambda text: "", "found no version"),
        (lambda text: "[1, 2]", "found no version"),
        (lambda text: "a: [", "not valid YAML"),
    ],
)
def test_a_file_that_is_not_as_it_was_written_is_refused_with_the_reason(edit, says, tmp_path, capsys):
    path = file_of(tmp_path)
    text = path.read_text()
    assert edit(text) != text
    path.write_text(edit(text))
    assert rig("replay", path) == 2
    told = capsys.readouterr()
    assert says in told.err
    assert (told.out, len(told.err.splitlines())) == ("", 1)


def test_a_file_cut_off_anywhere_is_refused(tmp_path):
    path = file_of(tmp_path)
    text = path.read_text()
    for length in [*range(0, len(text) - 1, 131), len(text) - 2]:
        path.write_text(text[:length])
        with pytest.raises(UsageError, match=r"1\.yaml"):
            failures.read(str(path))


@pytest.mark.parametrize(
    "text", ["a\r\nb", "x = '\\N{SNOWMAN} \u2603 \U0001f600'\n", "\ttab\n  \n\n end ", "# \x85\n'''\n"]
)
def test_any_source_comes_back_as_it_was(text, tmp_path):
    records = judged(spec("mine", planted("one_step_early")), "slot_reuse")
    records[0]["targets"]["mine"]["source"] = text
    _, files = written(tmp_path, records)
    assert files[0][1]["target"]["source"] == text


def test_without_operations_a_file_keeps_the_command_and_says_so(tmp_path, capsys):
    source = "raise OSError('no such library')"
    _, [(path, failure)] = written(tmp_path, judged(spec("mine", source), "slot_reuse"))
    assert (failure["ops"], failure["replay"], failure["target"].get("source")) == (None, None, None)
    assert rig("replay", path) == 2
    assert "no operations to replay; run its assignment again: python -m rig run" in capsys.readouterr().err


def test_a_run_writes_the_same_files_again_from_its_records_alone(tmp_path, capsys):
    target = tmp_path / "mine.py"
    target.write_text(planted("one_step_early"))
    config = tmp_path / "c.yaml"
    config.write_text(
        "version: 1\nname: c\nseats: {kind: cpu}\nbackends: [sim]\ncontrols: false\nshrink_s: 30\n"
        f"targets: ['{target}']\nruns:\n  - scenario: slot_reuse\n    params: {{num_steps: 9}}\n"
    )
    out = tmp_path / "out"
    assert rig("run", config, "--local", "--out", out) == 1
    assert f"    rig replay {out / 'failures' / '1.yaml'}\n" in capsys.readouterr().out
    first = {path.name: path.read_bytes() for path in (out / "failures").iterdir()}
    report = json.loads((out / "report.json").read_text())
    assert "source" not in report["run"]["targets"]["mine"]
    assert report["findings"][0]["replay"] == "failures/1.yaml"
    shutil.rmtree(out / "failures")
    target.unlink()
    assert rig("report", out) == 1
    assert {path.name: path.read_bytes() for path in (out / "failures").iterdir()} == first
    capsys.readouterr()
    assert first["1.yaml"].count(b"\n- {op: ") == len(failures.read(str(out / "failures" / "1.yaml"))["ops"])
    assert shown(capsys, out / "failures" / "1.yaml", "--times", 3)[1][-1] == "reproduced 3 of 3"
    types = [json.loads(line)["type"] for line in (out / FILE).read_text().splitlines()]
    assert types.index("shrinking") > types.index("finding")
