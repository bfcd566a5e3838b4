"""A seat's records lie on its own disk before they travel, and trouble with that disk costs nothing that can travel."""

import json
import os
from pathlib import Path

import pytest
from doubles import RUN, Tale, ToldWorker, passed, planned

from rig.digest import digest
from rig.records import encode
from rig.shell import Shell
from rig.spool import FOLDER, Spool, path_of, spools_of

ONE = planned()
FINDINGS = [{"type": "finding", "kind": "spill", "n": n} for n in range(5)]


def shell(spool: Spool) -> Shell:
    return Shell(ToldWorker({ONE["id"]: [*FINDINGS, passed(ONE)]}), run=RUN, seat="s0", incarnation="i", spool=spool)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_record_is_on_disk_before_it_is_handed_over(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s.jsonl")
    batches = shell(spool).run(ONE, {})
    (batch,) = batches
    assert lines(spool.path) == [encode(record) for record in batch]
    assert spool.path.stat().st_mode & 0o077 == 0


def test_what_a_killed_process_never_handed_over_is_there(tmp_path: Path) -> None:
    one = Shell(
        ToldWorker({ONE["id"]: [*FINDINGS, KeyboardInterrupt()]}),
        run=RUN,
        seat="s0",
        incarnation="i",
        spool=Spool(tmp_path / "s.jsonl"),
    )
    with pytest.raises(KeyboardInterrupt):
        list(one.run(ONE, {}))
    assert [json.loads(line)["n"] for line in lines(tmp_path / "s.jsonl")] == [0, 1, 2, 3, 4]


def test_spool_goes_unless_somebody_may_want_it(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    for keep in (True, False):
        spool = Spool(path_of(RUN, f"keep{keep}", folder=str(folder)))
        one = shell(spool)
        list(one.run(ONE, {}))
        one.close(keep_spool=keep)
        assert spool.path.exists() == keep
    assert [path.name for path in spools_of(RUN, folder)] == [f"rig-spool-{RUN}-keepTrue.jsonl"]
    Spool(path_of(RUN, "keepTrue", folder=str(folder))).close(keep=False)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_made_for_a_seat_that_never_worked(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s.jsonl")
    shell(spool).describe()
    spool.close(keep=True)
    assert list(tmp_path.iterdir()) == []


def full_disk(spool: Spool) -> None:
    spool._file = os.open("/dev/full", os.O_WRONLY)


def small(spool: Spool) -> None:
    spool._bytes_max = 400


def taken(spool: Spool) -> None:
    spool.path.write_text("somebody else's")


def no_folder(spool: Spool) -> None:
    spool.path = spool.path / "no" / "s.jsonl"


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (full_disk, "No space left on device"),
        (small, "it may take 400 bytes"),
        (taken, "File exists"),
        (no_folder, "No such file or directory"),
    ],
)
def test_spool_in_trouble_costs_no_record_and_is_told_once(tmp_path: Path, harm: object, says: str) -> None:
    spool = Spool(tmp_path / "s.jsonl")
    harm(spool)  # type: ignore[operator]
    one = shell(spool)
    records = [r for job in (one.run(ONE, {}), one.controls(["sim"]), one.run(ONE, {})) for batch in job for r in batch]
    assert [r["n"] for r in records if r["type"] == "finding"] == [*range(5), *range(5)]
    assert sum(r["type"] == "assignment" for r in records) == 2
    (told,) = (r for r in records if r["type"] == "spool")
    assert says in told["reason"]
    if harm is small:
        assert f"it holds the first {len(lines(spool.path))} records" in told["reason"]
        assert len(lines(spool.path)) > 0


def test_spool_without_trouble_tells_nothing(tmp_path: Path) -> None:
    records = [r for batch in shell(Spool(tmp_path / "s.jsonl")).run(ONE, {}) for r in batch]
    assert "spool" not in {r["type"] for r in records}


def test_trouble_is_shown_with_the_seat_and_does_not_change_the_verdict() -> None:
    tale = Tale().tell(ONE)
    tale.add("spool", "inc", {"seat": "s0", "incarnation": "inc", "reason": "s.jsonl: No space left on device"})
    report = digest(tale.ends())
    assert (report["verdict"], report["seats"][0]["spool"]) == ("PASS", "s.jsonl: No space left on device")
    assert "seat s0 spools no more records: s.jsonl: No space left on device" in report["run"]["reasons"]
    assert "spool" not in digest(Tale().tell(ONE).ends())["seats"][0]


def test_spools_of_other_runs_are_left_alone(tmp_path: Path) -> None:
    names = [f"rig-spool-{RUN}-ab12.jsonl", f"rig-spool-{RUN}-ab12.part", f"rig-spool-{RUN}-more-ab12.jsonl", "x.jsonl"]
    for name in names:
        (tmp_path / name).touch()
    assert [path.name for path in spools_of(RUN, tmp_path)] == names[:1]
    assert list(spools_of(RUN, tmp_path / "nowhere")) == []
