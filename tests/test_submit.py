"""`rig submit` without a cluster: what travels, what comes back, how a log is followed, and how a run is concluded."""

import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rig import jobs, parcel, upload
from rig.config import load_config
from rig.errors import UsageError
from rig.jobs import Job, Log, Unreachable, follow
from rig.parcel import Damaged, decode, encode, num_pieces, receive
from rig.returned import Returned, conclude
from rig.shipment import prepare

ROOT = Path(__file__).resolve().parent.parent
SWITCHES: dict[str, Any] = {
    "settings": (),
    "targets": (),
    "backends": (),
    "only": (),
    "seed": None,
    "ledger": False,
    "fail_fast": False,
}
CONFIG = """\
version: 1
name: mine
targets: [staging, ours.py]
runs:
  - scenario: hot_path
    mode: measure
    compare: theirs.py
"""


# What comes back: a folder in pieces.


def filled(folder: Path) -> Path:
    for name, data in {
        "records.jsonl": bytes(range(256)) * 5,
        "report.json": b"{}",
        "failures/1.yaml": b"x" * 700,
        "stacks/s0.txt": b"",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("piece_bytes", [1, 7, 700, 701, 1982, 1 << 20])
def test_a_folder_arrives_as_it_was_in_pieces_of_any_size(tmp_path: Path, piece_bytes: int) -> None:
    there, here = filled(tmp_path / "there"), tmp_path / "here"
    asked = []

    def ask(index: int) -> str:
        asked.append(index)
        return "a line of the log\n" + encode(there, index, piece_bytes=piece_bytes) + "\n"

    assert receive(ask, here, piece_bytes=piece_bytes) == 1982
    assert contents(here) == contents(there)
    assert asked == list(range(num_pieces(1982, piece_bytes)))


def test_an_empty_folder_arrives(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    assert receive(lambda index: encode(tmp_path / "there", index), tmp_path / "here") == 0


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda line: line[:-9], "did not arrive whole"),
        (lambda line: line.replace(parcel.MARK, "RIG"), "did not arrive whole"),
        (lambda line: line[:90] + ("A" if line[90] != "A" else "B") + line[91:], "did not arrive whole"),
        (lambda line: "", "did not arrive whole"),
    ],
)
def test_a_damaged_piece_is_refused(tmp_path: Path, damage: Callable[[str], str], says: str) -> None:
    line = encode(filled(tmp_path), 0)
    assert decode(line).files[0] == ("failures/1.yaml", 700)
    with pytest.raises(Damaged, match=says):
        decode(damage(line))


def test_a_folder_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    there = filled(tmp_path / "there")

    def ask(index: int) -> str:
        if index == 2:
            (there / "report.json").write_text("{...}")
        return encode(there, index, piece_bytes=500)

    with pytest.raises(Damaged, match="the folder changed"):
        receive(ask, tmp_path / "here", piece_bytes=500)


def test_a_piece_with_too_few_bytes_is_refused(tmp_path: Path) -> None:
    there = filled(tmp_path / "there")
    with pytest.raises(Damaged, match="fewer bytes"):
        receive(lambda index: encode(there, index, piece_bytes=500), tmp_path / "here", piece_bytes=1 << 20)


def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = encode(filled(tmp_path / "there"), 0)
    for name in ("../out.txt", "/etc/out.txt", "a/../../out.txt"):
        monkeypatch.setattr(parcel, "decode", lambda _, name=name: parcel.Piece(((name, 1),), b"x"))
        with pytest.raises(Damaged, match="does not belong"):
            receive(lambda _: line, tmp_path / "here")
    assert not (tmp_path / "here").exists()


# What travels.


def project(folder: Path) -> Path:
    for name in ("mine/a.py", "data.csv", ".venv/b", "runs/old/c", ".env", "mine/__pycache__/d.pyc", "large.bin"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / ".gitignore").write_text("large.bin\n")
    return folder


def own(files: dict[str, Path]) -> set[str]:
    return {name for name in files if not name.startswith(("rig/", "staging/"))}


def test_a_working_folder_travels_without_what_is_left_out(tmp_path: Path) -> None:
    files = upload.code(project(tmp_path))
    assert own(files) == {"mine/a.py", "data.csv", "large.bin", ".gitignore"}
    assert {"rig/__main__.py", "staging/__init__.py", "rig/py.typed"} <= set(files)
    assert not any(".pyc" in name for name in files)


def test_what_git_ignores_does_not_travel(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(project(tmp_path))], check=True)
    assert own(upload.code(tmp_path)) == {"mine/a.py", "data.csv", ".gitignore"}


def test_by_default_only_the_two_packages_travel() -> None:
    files = upload.code(None)
    assert own(files) == set()
    assert files["rig/upload.py"] == ROOT / "rig" / "upload.py"


def test_a_working_folder_with_a_rig_of_its_own_gets_no_other(tmp_path: Path) -> None:
    (tmp_path / "rig").mkdir()
    (tmp_path / "rig" / "__main__.py").touch()
    assert set(upload.code(tmp_path)) == {"rig/__main__.py"}


def test_the_same_files_make_the_same_archive(tmp_path: Path) -> None:
    files = {"b.py": project(tmp_path / "one") / "mine/a.py", "a/c.csv": tmp_path / "one" / "data.csv"}
    upload.write_archive(tmp_path / "1.zip", files)
    files["b.py"].touch()
    nbytes = upload.write_archive(tmp_path / "2.zip", dict(reversed(files.items())))
    assert (tmp_path / "1.zip").read_bytes() == (tmp_path / "2.zip").read_bytes()
    assert nbytes == (tmp_path / "2.zip").stat().st_size
    assert zipfile.ZipFile(tmp_path / "2.zip").read("a/c.csv") == b"data.csv"


def test_an_upload_that_no_server_takes_is_told_with_its_largest_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"a.py": project(tmp_path) / "mine/a.py"}
    upload.write_archive(tmp_path / "1.zip", files)
    monkeypatch.setattr(upload, "NBYTES_MAX", 10)
    with pytest.raises(UsageError, match=r"larger than 0 MiB.*largest: a.py"):
        upload.write_archive(tmp_path / "2.zip", files)


def test_config_and_file_targets_travel_wherever_they_are(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(CONFIG)
    for name in ("ours.py", "theirs.py"):
        (tmp_path / name).write_text("# a target\n")
    config = load_config(tmp_path / "c.yaml", settings=("seed=3",))
    switches = SWITCHES | {"settings": ("seed=3",), "only": ("hot_path:*",), "fail_fast": True, "backends": ("cpu",)}
    shipment = prepare(tmp_path / "c.yaml", config, switches, code={})
    assert shipment.files == {
        "rig-submitted/c.yaml": tmp_path / "c.yaml",
        "rig-submitted/0/ours.py": tmp_path / "ours.py",
        "rig-submitted/1/theirs.py": tmp_path / "theirs.py",
    }
    assert shipment.entrypoint == (
        "python -m rig run rig-submitted/c.yaml --set seed=3 "
        "--set 'runs.0.compare=\"rig-submitted/1/theirs.py\"' --target staging --target rig-submitted/0/ours.py "
        f"--backend cpu --only 'hot_path:*' --fail-fast --out ~/rig-runs/{shipment.job}"
    )
    assert shipment.metadata["seed"] == "3"


# Following a log.


class Script:
    """A job server that answers as it is told: a state and a log, or an error, one after the other."""

    def __init__(self, *answers: tuple[str, str | None] | None) -> None:
        self._answers = iter(answers)
        self._log: str | None = None

    def info(self, job_id: str) -> Job:
        answer = next(self._answers)
        if answer is None:
            raise Unreachable("away")
        status, self._log = answer
        return Job(status=status)

    def log(self, job_id: str) -> str:
        if self._log is None:
            raise Unreachable("no log")
        return self._log

    def stop(self, job_id: str) -> None:
        raise NotImplementedError

    def submit(self, job_id: str, **more: Any) -> None:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_POLL_S", 0.0)


def followed(script: Script, **more: Any) -> tuple[Job, list[str], Log]:
    said: list[str] = []
    log = Log(said.append)
    return follow(script, "job", show=log.show, say=said.append, **more), said, log


def test_each_line_is_shown_once_and_the_last_ones_are_not_lost() -> None:
    whole = "one\ntwo\nthree\nRIG verdict=FAIL exit=1 report=/there/report.json\nafter"
    script = Script(("PENDING", ""), ("RUNNING", "one\ntw"), ("RUNNING", "one\ntwo\n"), ("FAILED", whole))
    job, said, log = followed(script)
    assert job.status == "FAILED"
    assert said == ["one", "two", "three", "after"]
    assert log.verdict == ("FAIL", 1, "/there/report.json")


def test_a_log_that_is_away_for_a_while_is_not_shown_again() -> None:
    away = (None, None, ("RUNNING", ""), ("RUNNING", None))
    script = Script(("RUNNING", "one\n"), *away, ("SUCCEEDED", "one\ntwo\n"))
    _, said, _ = followed(script)
    assert [line for line in said if not line.startswith("rig: no answer")] == ["one", "two"]
    assert sum(line.startswith("rig: no answer") for line in said) == 2


def test_a_server_that_stays_away_ends_it() -> None:
    with pytest.raises(Unreachable, match="away"):
        followed(Script(("RUNNING", "one\n"), None, None, None), lost_s=-1)


def test_a_job_that_is_over_and_took_its_log_along_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_LOG_LOST_S", -1)
    job, said, _ = followed(Script(("RUNNING", "one\n"), ("FAILED", None)))
    assert job.status == "FAILED"
    assert said == ["one", "rig: the job is over, and the rest of its log is lost (no log)"]


def test_a_job_that_does_not_end_is_left_at_the_limit() -> None:
    assert followed(Script(("RUNNING", "")), limit_s=-1)[0].status == "RUNNING"


# Concluding.


def returned(folder: Path) -> Returned:
    config = load_config("smoke")
    keys = ("config_file", "overrides", "only", "targets", "baselines", "versions", "false_alarms", "command")
    return Returned(config, (folder, []), about=dict.fromkeys(keys))


def log_of(text: str) -> Log:
    log = Log(lambda _: None)
    log.show(text, True)
    return log


@pytest.mark.parametrize(
    ("job", "line", "ends"),
    [
        (Job(status="SUCCEEDED", exit_code=0), "RIG verdict=PASS exit=0 report=/r", ("PASS", 0)),
        (Job(status="FAILED", exit_code=1), "RIG verdict=FAIL exit=1 report=/r", ("FAIL", 1)),
        (Job(status="FAILED", exit_code=5), "RIG verdict=HANG exit=5 report=/r", ("HANG", 5)),
        (Job(status="FAILED", exit_code=139), "RIG verdict=FAIL exit=1 report=/r", ("FAIL", 1)),
        (Job(status="STOPPED"), "RIG verdict=INCOMPLETE exit=130 report=/r", ("INCOMPLETE", 130)),
        # success that nobody vouches for
        (Job(status="FAILED", exit_code=139), "RIG verdict=PASS exit=0 report=/r", ("INCOMPLETE", 4)),
        (Job(status="STOPPED"), "RIG verdict=PASS exit=0 report=/r", ("INCOMPLETE", 4)),
        (Job(status="SUCCEEDED", exit_code=0), "", ("INCOMPLETE", 4)),
        (Job(status="FAILED", exit_code=1), "Traceback", ("INCOMPLETE", 4)),
        (Job(status="FAILED", exit_code=2), "python: no such file", ("INCOMPLETE", 4)),
        (Job(status="UNKNOWN", message="gone"), "", ("INCOMPLETE", 4)),
    ],
)
def test_the_end_is_the_rigs_own_word_if_its_process_ended_so(
    tmp_path: Path, job: Job, line: str, ends: tuple[str, int]
) -> None:
    told = conclude(job, log_of(line), returned(tmp_path), job_id="j", say=lambda _: None)
    assert (told.verdict, told.exit_code) == ends


def test_a_run_of_which_nothing_came_gets_a_report_that_says_why(tmp_path: Path) -> None:
    job = Job(status="FAILED", message="Runtime env failed\nand more")
    back = returned(tmp_path)
    told = conclude(job, log_of(""), back, job_id="j", say=lambda _: None)
    assert told.report == str(tmp_path / "report.json")
    assert back.report
    assert "job j ended as FAILED without the rig's last line: Runtime env failed" in back.report["run"]["reasons"]


def test_a_job_whose_own_check_refused_the_run_is_a_usage_error(tmp_path: Path) -> None:
    log = log_of("rig: 10.0.0.1:6379: the cluster is full\n")
    with pytest.raises(UsageError, match=r"job j did not run: 10\.0\.0\.1:6379: the cluster is full"):
        conclude(Job(status="FAILED", exit_code=2), log, returned(tmp_path), job_id="j", say=lambda _: None)


@pytest.mark.parametrize(("exit_code", "ends"), [(1, ("FAIL", 1)), (137, ("INCOMPLETE", 4))])
def test_a_report_stands_in_for_a_lost_log_if_the_process_ended_so(
    tmp_path: Path, exit_code: int, ends: tuple[str, int]
) -> None:
    (tmp_path / "report.json").write_text('{"verdict": "FAIL", "exit_code": 1}')
    job = Job(status="FAILED", exit_code=exit_code)
    told = conclude(job, log_of(""), returned(tmp_path), job_id="j", say=lambda _: None)
    assert (told.verdict, told.exit_code) == ends
