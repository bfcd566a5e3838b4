"""A run's folder is its own, and a full disk loses the file but not the verdict."""

import errno
from pathlib import Path
from typing import Any

import pytest
from doubles import planned

from rig.config import RunConfig
from rig.digest import digest
from rig.errors import UsageError
from rig.journal import Journal, make_folder
from rig.plan import plan
from rig.records import FILE
from rig.seats import Seat

CONFIG = RunConfig.model_validate({"version": 1, "name": "t", "runs": ({"scenario": "slot_reuse"},), "controls": False})
SEAT = Seat(id="s0", kind="cpu")


def journal(folder: Path) -> Journal:
    about = {"config_file": None, "overrides": [], "only": [], "targets": {}, "versions": {}, "command": []}
    return Journal(CONFIG, folder=(folder, [folder]), about=about)


def begin(one: Journal) -> None:
    one.begin(seats=[SEAT], plan=plan(CONFIG, [SEAT]), expect={"cpu_nodes": 1}, found={"cpu_nodes": 1}, transport="ray")


def test_default_folder_is_named_after_run_and_time_and_never_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [make_folder("t", None, is_job=False)[0] for _ in range(3)]
    assert len(set(folders)) == 3
    assert all(folder.parent == tmp_path / "runs" and folder.name.startswith("t-") for folder in folders)


def test_default_folder_of_a_job_lies_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert make_folder("t", None, is_job=True)[0].parent == tmp_path / "rig-runs"


def test_given_folder_may_be_empty_but_not_in_use(tmp_path: Path) -> None:
    assert make_folder("t", str(tmp_path), is_job=False) == (tmp_path, [])
    assert make_folder("t", str(tmp_path / "a" / "b"), is_job=False)[1] == [tmp_path / "a" / "b", tmp_path / "a"]
    with pytest.raises(UsageError, match="not empty"):
        make_folder("t", str(tmp_path), is_job=False)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be made"):
        make_folder("t", str(tmp_path / "file"), is_job=False)


def test_two_runs_cannot_share_a_folder(tmp_path: Path) -> None:
    first = journal(tmp_path)
    with pytest.raises(UsageError, match="File exists"):
        journal(tmp_path)
    first.end(interrupted=None, missing=[], error=None)


def test_discarded_run_removes_only_what_was_made_for_it(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    journal(tmp_path / "runs").discard()
    assert list(tmp_path.iterdir()) == []
    kept = tmp_path / "kept"
    kept.mkdir()
    one = Journal(CONFIG, folder=(kept, []), about={})
    one.discard()
    assert list(tmp_path.iterdir()) == [kept]


def test_run_that_ends_before_it_began_still_has_a_report(tmp_path: Path) -> None:
    one = journal(tmp_path)
    one.end(interrupted="SIGTERM", missing=[], error=None)
    report = digest(one.records)
    assert (report["verdict"], report["exit_code"]) == ("INCOMPLETE", 130)
    assert (tmp_path / FILE).read_text().count("\n") == 2


def test_full_disk_is_incomplete_and_keeps_what_arrived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = journal(tmp_path)
    begin(one)
    one._log._file.close()

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(one._log, "_file", type("Full", (), {"write": full, "flush": full, "close": full})())
    finding = {"type": "finding", "id": "r/x/1/i/0", "assignment": one.records[0]["plan"][0]["id"], "kind": "spill"}
    with pytest.raises(OSError, match="No space left"):
        one.append([finding])
    one.end(interrupted=None, missing=["the disk is full"], error=None)
    report = digest(one.records)
    assert (report["verdict"], [f["kind"] for f in report["findings"]]) == ("FAIL", ["spill"])
    assert "the records could not be written: No space left on device" in report["run"]["reasons"]


def test_doubles_plan_what_the_plan_plans() -> None:
    (made,) = plan(CONFIG, [SEAT]).dicts()
    assert set(made) == set(planned())
