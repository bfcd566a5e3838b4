"""Reports render the digest alone: plain where nobody looks, whole where tools do."""

import io
import json
import re
from pathlib import Path

import pytest
from doubles import CELL, Tale, latency, planned

from rig import registry
from rig.digest import digest
from rig.progress import Live, Progress
from rig.report import write_reports
from rig.sources import target_spec

ONE = planned(mode="both")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(params=registry.names("reports"))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


TALES = {
    "passed": lambda: Tale([ONE]).tell(ONE, latency=latency("publish", 1000, 2000)).ends(),
    "failed": lambda: Tale([ONE]).find(ONE, "slot_reuse").tell(ONE).ends(),
    "empty": lambda: Tale([]).ends(),
    "cut": lambda: Tale([ONE]).records,
    "many": lambda: Tale([planned(cell=f"{CELL},n={n}") for n in range(60)]).ends(),
}


@pytest.mark.parametrize("tale", TALES)
def test_every_format_renders_every_kind_of_run(name: str, tale: str, tmp_path: Path) -> None:
    registry.load("reports", name).write(digest(TALES[tale]()), tmp_path)


def test_every_format_says_what_it_is(name: str) -> None:
    assert registry.summary("reports", name)


def test_json_report_is_the_digest(tmp_path: Path) -> None:
    report = digest(TALES["failed"]())
    registry.load("reports", "json").write(report, tmp_path)
    assert json.loads((tmp_path / "report.json").read_text()) == json.loads(json.dumps(report))


def test_console_report_is_plain_and_narrow_without_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    registry.load("reports", "console").write(digest(TALES["failed"]()), tmp_path)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 100
    assert out.index("slot_reuse: slot_reuse it is") < out.index("unfenced_reuse") < out.index("scenario")


def test_console_groups_findings_and_shows_the_simplest_cell_of_each_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = [planned(cell=f"{CELL},rows={10**n}") for n in range(9, 0, -1)]
    tale = Tale(cells)
    for cell in cells:
        tale.find(cell, "spill").find(cell, "slot_reuse")
    registry.load("reports", "console").write(digest(tale.ends()), tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert sum("it is" in line for line in lines) == 2
    assert lines.count(f"    {CELL},rows=10@s0") == 2
    assert sum(line.startswith(f"    rig replay {tmp_path}/failures/") for line in lines) == 2
    assert "    and 8 more spill in slot_reuse, in report.json" in lines


def test_console_breaks_no_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = planned(cell=f"{CELL},{'x' * 120}=1")
    registry.load("reports", "console").write(digest(Tale([one]).find(one, "spill").ends()), tmp_path)
    assert f"    {one['id']}\n" in capsys.readouterr().out


def test_console_names_the_file_to_replay_from_where_one_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    registry.load("reports", "console").write(digest(TALES["failed"]()), tmp_path / "runs" / "one")
    assert "    rig replay runs/one/failures/1.yaml\n" in capsys.readouterr().out


def test_format_that_breaks_does_not_cost_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(report: object, folder: Path) -> None:
        raise UnicodeEncodeError("ascii", "\xfc", 0, 1, "no")

    monkeypatch.setattr(registry.load("reports", "console"), "write", write)
    assert write_reports(TALES["passed"](), tmp_path, formats=["console", "nowhere"]) == ("PASS", 0)
    lines = capsys.readouterr().out.splitlines()
    assert ["console" in lines[0], "nowhere" in lines[1]] == [True, True]
    assert lines[-1].startswith("RIG verdict=PASS exit=0 report=")


@pytest.mark.parametrize("width", [80, 120])
def test_bar_stays_beside_a_long_assignment(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    live = Live(stream)
    with live:
        live.planned(60)
        live.beat("s0", "slot_reuse:staging:sim:" + "x" * 200)
        live._bar.refresh()
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue().rpartition("running: ")[0]).rpartition("\r")[2]
    assert "\u2501" * 20 in last
    assert " 0/60 " in last


def test_last_line_comes_even_if_no_file_can_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert write_reports(TALES["passed"](), tmp_path / "gone", formats=["json"]) == ("PASS", 0)
    lines = capsys.readouterr().out.splitlines()
    assert "could not be written" in lines[0]
    assert lines[-1] == f"RIG verdict=PASS exit=0 report={tmp_path / 'gone' / 'report.json'}"


def test_progress_has_a_line_per_finished_assignment_and_one_for_what_will_not_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    import sys

    tale = Tale([ONE]).tell(ONE).tell(ONE, verdict="INCOMPLETE", elapsed_s=0.0, reason="interrupted")
    progress = Progress(sys.stderr)
    progress.planned(2)
    progress.took(tale.ends())
    lines = [line.partition(" s] ")[2] for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        "s0 controls caught 1/1",
        f"s0 PASS {CELL} 10 words 0.50 s",
        "s0 will not run 1 assignments: interrupted",
    ]


def test_progress_breaks_a_silence(capsys: pytest.CaptureFixture[str]) -> None:
    import sys
    import time

    with Progress(sys.stderr, silence_s=0.1) as progress:
        progress.phase("waiting")
        progress.beat("s0", "cell step 7")
        time.sleep(1.3)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("waiting")
    assert lines[1].endswith("running: s0 cell step 7")


@pytest.mark.parametrize(
    ("entry", "kind", "name"),
    [
        ("staging", "builtin", "staging"),
        ("a.b", "module", "a.b"),
        (
            "faulty:off_by_one",
            "builtin",
        )
        * 1
        + ("faulty:off_by_one",),
    ],
)
def test_target_spec_says_what_the_worker_loads(entry: str, kind: str, name: str) -> None:
    spec = target_spec(entry)
    assert (spec["kind"], spec["name"], spec["source"]) == (kind, name, None)


def test_target_file_is_shipped_with_its_hash(tmp_path: Path) -> None:
    import hashlib

    path = tmp_path / "mine.py"
    path.write_text("x = 1\n")
    spec = target_spec(str(path))
    assert (spec["name"], spec["kind"], spec["source"]) == ("mine", "file", "x = 1\n")
    assert spec["sha256"] == hashlib.sha256(b"x = 1\n").hexdigest()
