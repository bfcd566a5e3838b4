"""`rig collect` without a cluster: what the driver never got is merged by id, appended, and judged again."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from doubles import RUN, Tale, ToldWorker, passed, planned

from rig.__main__ import main
from rig.records import FILE, Record, RecordLog, encode, read
from rig.shell import Shell
from rig.spool import FOLDER, Spool, path_of

ROOT = Path(__file__).resolve().parent.parent
PLAN = [planned(cell=f"slot_reuse:staging:sim:n={n}") for n in range(2)]
ENDS = {"end": "2026-01-01T00:00:09", "elapsed_s": 9.0}


def write(folder: Path, records: list[Record]) -> Path:
    folder.mkdir()
    log = RecordLog(folder / FILE)
    log.append(records)
    log.close()
    return folder


def spooled(folder: Path, *bodies: dict[str, Any], incarnation: str = "inc") -> Path:
    """The spool of a seat that ran both assignments: the first passed, the second comes to `bodies`."""
    path = path_of(RUN, incarnation, folder=str(folder))
    told = {PLAN[0]["id"]: [passed(PLAN[0])], PLAN[1]["id"]: bodies or [passed(PLAN[1])]}
    shell = Shell(ToldWorker(told), run=RUN, seat="s0", incarnation=incarnation, spool=Spool(path))
    for assignment in PLAN:
        for _ in shell.run(assignment, {}):
            pass
    return path


def collect(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main(["collect", *map(str, arguments)])
    return int(end.value.code or 0)


def report(folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return told


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "temp").mkdir()
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "temp"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_killed_driver_gets_its_records_and_stays_incomplete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, path = write(tmp_path / "out", Tale(PLAN).records), spooled(tmp_path)
    assert collect(out, path) == 4
    told = report(out)
    assert (told["verdict"], told["verdict_counts"]["PASS"]) == ("INCOMPLETE", 2)
    assert any("no end record" in reason for reason in told["run"]["reasons"])
    assert f"2 records of s0 were collected from {path}" in told["run"]["reasons"]
    assert f"s0  2 records, 2 new, from {path}" in capsys.readouterr().out


def test_finding_that_the_driver_never_saw_is_a_failure(tmp_path: Path) -> None:
    found = {"type": "finding", "kind": "spill", "summary": "it spilt"}
    out, path = write(tmp_path / "out", Tale(PLAN).records), spooled(tmp_path, found, passed(PLAN[1], verdict="FAIL"))
    assert collect(out, path) == 1
    assert [f["kind"] for f in report(out)["findings"]] == ["spill"]


def test_lost_seat_that_had_finished_counts_once_and_by_its_own_word(tmp_path: Path) -> None:
    tale = Tale(PLAN).tell(PLAN[0], verdict="INCOMPLETE", incarnation="driver", reason="not run")
    tale.add("lost", "driver", {"seat": "s0", "verdict": "INCOMPLETE", "during": PLAN[0]["id"], "reason": "no answer"})
    tale.tell(PLAN[1], verdict="INCOMPLETE", incarnation="driver", reason="not run")
    out = write(tmp_path / "out", tale.ends())
    assert collect(out, spooled(tmp_path)) == 4
    told = report(out)
    assert (told["verdict_counts"]["PASS"], told["coverage"]["checked_words"]) == (2, 20)
    assert told["verdict"] == "INCOMPLETE"  # the seat was lost, and the config says nothing of retries


@pytest.mark.parametrize("verdict", ["FAIL", "HANG"])
def test_drivers_word_of_a_failure_stands(tmp_path: Path, verdict: str) -> None:
    tale = Tale(PLAN).tell(PLAN[1], verdict=verdict, incarnation="driver")
    out = write(tmp_path / "out", tale.ends())
    collect(out, spooled(tmp_path))
    assert report(out)["verdict_counts"][verdict] == 1


def test_collecting_twice_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, path = write(tmp_path / "out", Tale(PLAN).records), spooled(tmp_path)
    collect(out, path)
    first = (out / FILE).read_bytes(), (out / "report.json").read_bytes()
    capsys.readouterr()
    collect(out, path, path)
    assert ((out / FILE).read_bytes(), (out / "report.json").read_bytes()) == first
    assert capsys.readouterr().out.count("s0  2 records, 0 new") == 2


def test_complete_run_stays_as_it_is(tmp_path: Path) -> None:
    tale, path = Tale(PLAN), spooled(tmp_path)
    tale.records += [json.loads(line) for line in path.read_text().splitlines()]
    out = write(tmp_path / "out", tale.ends())
    before = (out / FILE).read_bytes()
    assert collect(out, path) == 0
    assert (out / FILE).read_bytes() == before


def test_same_id_with_other_bytes_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tale, path = Tale(PLAN), spooled(tmp_path)
    one = json.loads(path.read_text().splitlines()[0])
    tale.records.append(one | {"checked_words": 11})
    out = write(tmp_path / "out", tale.ends())
    assert collect(out, path) == 70
    assert any(f"two records with the id {one['id']} differ" in reason for reason in report(out)["run"]["reasons"])
    assert "1 of them with an id that is known with other bytes" in capsys.readouterr().out


def test_other_life_of_a_seat_is_kept_and_not_judged(tmp_path: Path) -> None:
    out = write(tmp_path / "out", Tale(PLAN).tell(PLAN[0]).tell(PLAN[1]).ends())
    path = spooled(tmp_path, passed(PLAN[1], verdict="FAIL"), incarnation="before")
    assert collect(out, path) == 0
    assert report(out)["run"]["num_stale"] == 2


def test_line_that_a_kill_cut_off_is_dropped_on_both_sides(tmp_path: Path) -> None:
    out, path = write(tmp_path / "out", Tale(PLAN).records), spooled(tmp_path)
    for cut in (out / FILE, path):
        with cut.open("a") as file:
            file.write('{"id": "cut o')
    collect(out, path)
    assert report(out)["verdict_counts"]["PASS"] == 2
    assert len(read(out)) == len(Tale(PLAN).records) + 3


@pytest.mark.parametrize("where", ["own folder", "temp folder", "given folder"])
def test_spools_are_found_where_they_lie(tmp_path: Path, where: str) -> None:
    out = write(tmp_path / "out", Tale(PLAN).records)
    folder = {"own folder": out / FOLDER, "temp folder": tmp_path / "temp", "given folder": tmp_path}[where]
    path = spooled(folder)
    assert collect(out, *{"own folder": [], "temp folder": ["--local"], "given folder": [tmp_path]}[where]) == 4
    assert report(out)["verdict_counts"]["PASS"] == 2
    assert path.exists() == (where != "own folder")
    assert not (out / FOLDER).exists()


def line(**more: Any) -> str:
    record = {"type": "controls", "num": 1, "seat": "s0", "incarnation": "i", "id": f"{RUN}/controls:s0/1/i/0"} | more
    return encode(record) + "\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}\n", "expected a spool of this run"),
        ("[1]\n", "expected a spool of this run"),
        ("no json\n", "expected a spool of this run"),
        (line(id="other/controls:s0/1/i/0"), f"is not of a seat of this run, {RUN}"),
        (line(id=f"{RUN}/controls:s0/1/driver/0"), "is not of a seat of this run"),
        (line(type="end"), "a record of type 'end'"),
        (line(type="run"), "a record of type 'run'"),
        (line(num=-1), "num: found int -1"),
        (line(num=1).replace("1", "NaN"), "expected a spool of this run"),
    ],
)
def test_file_that_is_no_spool_of_the_run_changes_nothing(
    tmp_path: Path, text: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = write(tmp_path / "out", Tale(PLAN).records)
    before = (out / FILE).read_bytes()
    good, bad = spooled(tmp_path), tmp_path / "bad.jsonl"
    bad.write_text(text)
    assert collect(out, good, bad) == 2
    assert says in capsys.readouterr().err
    assert (out / FILE).read_bytes() == before
    assert not (out / "report.json").exists()


def test_nowhere_to_look_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = write(tmp_path / "out", Tale(PLAN).records)
    assert collect(out) == 2
    assert "expected --address of the run's cluster, --local" in capsys.readouterr().err
    assert collect(out, tmp_path) == 2
    assert f"no spool of {RUN} lies there" in capsys.readouterr().err
    assert collect(out, "--local", "--address", "a:1") == 2


def test_run_that_goes_on_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, path = tmp_path / "out", spooled(tmp_path)
    out.mkdir()
    log = RecordLog(out / FILE)
    log.append(Tale(PLAN).records)
    assert collect(out, path) == 2
    assert "the run is still going on" in capsys.readouterr().err
    log.close()
    assert collect(out, path) == 4


def test_seat_whose_spool_is_elsewhere_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tale = Tale(PLAN)
    seat = next(r for r in tale.records if r["type"] == "seat")
    seat |= {"spool": "/tmp/rig-spool-there.jsonl", "address": "10.0.0.9"}
    out = write(tmp_path / "out", tale.records)
    collect(out, "--local")
    says = "s0  nothing found; if 10.0.0.9 has /tmp/rig-spool-there.jsonl, copy it here and give its path"
    assert says in capsys.readouterr().out


def test_full_disk_merges_nothing(tmp_path: Path) -> None:
    out = write(tmp_path / "out", Tale(PLAN).records)
    before = (out / FILE).read_bytes()
    path = spooled(out / FOLDER)
    # In a process of its own: no file may grow beyond what the records have now.
    driver = "import resource as r, sys; from rig.__main__ import main; n = int(sys.argv[1]); "
    driver += "r.setrlimit(r.RLIMIT_FSIZE, (n, n)); main(sys.argv[2:])"
    command = [sys.executable, "-c", driver, str(len(before) + 10), "collect", str(out)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, "nothing was merged" in ended.stderr) == (2, True)
    assert (out / FILE).read_bytes() == before
    assert path.exists()
