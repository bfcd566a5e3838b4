"""records.jsonl loses nothing that was appended, and reads back as it was."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from doubles import Tale, latency, planned

from rig import records
from rig.errors import UsageError
from rig.records import RecordLog, distinct, incarnation, read

ONE = planned()


def written(folder: Path, tale: list[dict[str, Any]]) -> Path:
    log = RecordLog(folder / records.FILE)
    log.append(tale)
    log.close()
    return folder


def test_records_read_back_as_they_were_appended(tmp_path: Path) -> None:
    tale = Tale([ONE]).tell(ONE).ends()
    assert read(written(tmp_path, tale)) == tale


def test_each_batch_is_on_file_before_the_next(tmp_path: Path) -> None:
    tale = Tale([ONE]).tell(ONE).ends()
    log = RecordLog(tmp_path / records.FILE)
    for number, record in enumerate(tale, start=1):
        log.append([record])
        assert len((tmp_path / records.FILE).read_text().splitlines()) == number
    log.close()


def test_repeats_are_dropped_and_counted_but_conflicts_are_kept(tmp_path: Path) -> None:
    log = RecordLog(tmp_path / records.FILE)
    first = {"id": "r/a/1/i/0", "type": "finding"}
    assert log.append([first, first]) == [first]
    assert log.append([first | {"kind": "x"}]) == [first | {"kind": "x"}]
    log.close()
    assert log.num_duplicates == 1
    assert distinct(log.records).conflicts == ["r/a/1/i/0"]


def test_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    written(tmp_path, [])
    with pytest.raises(FileExistsError):
        RecordLog(tmp_path / records.FILE)


@pytest.mark.parametrize("value", [float("nan"), object(), {1, 2}, b"x"])
def test_value_that_json_cannot_carry_is_refused(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        records.encode({"value": value})


def test_last_line_cut_by_a_killed_driver_is_dropped(tmp_path: Path) -> None:
    tale = Tale([ONE]).tell(ONE).ends()
    path = written(tmp_path, tale) / records.FILE
    path.write_text(path.read_text()[:-9])
    assert read(tmp_path) == tale[:-1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ":1: found no run record"),
        ("not json\n", ":1: not a record"),
        ("[1]\n", ":1: not a record"),
        ('{"type": "run"}\n', ":1: not a record"),
        ('{"id": 3, "type": "run"}\n', ":1: not a record"),
        ('{"id": "x", "type": "seat"}\n', ":1: found no run record"),
        ('{"id": "x", "type": "run", "schema": 99}\n', "records of schema 99; this version reads 1"),
        ('{"id": "x", "type": "run", "schema": 1}\nrubbish\n', ":2: not a record"),
    ],
)
def test_file_that_holds_no_records_is_named(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / records.FILE).write_text(text)
    with pytest.raises(UsageError) as caught:
        read(tmp_path)
    assert says in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / records.FILE))


def test_folder_without_records_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file or directory"):
        read(tmp_path / "none")


def test_ids_with_slashes_keep_their_parts() -> None:
    id_ = records.record_id("run", "scenario:a/b.py:sim:@s0", attempt=2, incarnation="abc", seq=7)
    assert incarnation({"id": id_}) == "abc"


def test_records_sort_by_subject_then_sequence() -> None:
    rows = [{"id": f"r/a/1/i/{seq}", "type": "finding"} for seq in (10, 9, 2)]
    assert [r["id"].rpartition("/")[2] for r in distinct(rows).records] == ["2", "9", "10"]


def test_records_are_plain_json_lines(tmp_path: Path) -> None:
    path = written(tmp_path, Tale([ONE]).tell(ONE).ends()) / records.FILE
    types = [json.loads(line)["type"] for line in path.read_text().splitlines()]
    assert (types[0], types[-1]) == ("run", "end")


def last_of(kind: str, **change: Any) -> Callable[[list[dict[str, Any]]], None]:
    def edit(tale: list[dict[str, Any]]) -> None:
        [r for r in tale if r["type"] == kind][-1].update(change)

    return edit


@pytest.mark.parametrize(
    "edit",
    [
        last_of("run", plan=None),
        last_of("run", plan=[{}]),
        last_of("run", plan=[planned(limits={"fast": 1.0})]),
        last_of("run", config=None),
        last_of("run", config={}),
        last_of("run", config={"backends": [], "reports": 3}),
        last_of("run", seats=None),
        last_of("run", expect={"gpus": "x"}),
        last_of("run", id="x"),
        last_of("seat", backends=3),
        last_of("control", caught="yes"),
        last_of("controls", num=None),
        last_of("finding", summary=None),
        last_of("assignment", id="x"),
        last_of("assignment", verdict="FINE"),
        last_of("assignment", assignment=None),
        last_of("assignment", latency=[]),
        last_of("assignment", latency={"publish": {"n": 1, "histogram": {"counts": [[1]]}}}),
        last_of("assignment", checked_words="many"),
        last_of("assignment", checked_words=-5),
        last_of("assignment", elapsed_s=math.nan),
        last_of("end", missing="x"),
        lambda tale: tale.insert(2, tale[0] | {"id": "other/run/1/driver/0"}),
        lambda tale: tale[-2].pop("verdict"),
    ],
)
def test_edited_record_is_named_with_its_line(edit: Callable[[list[dict[str, Any]]], Any], tmp_path: Path) -> None:
    whole = Tale([ONE]).find(ONE, "spill").tell(ONE, latency=latency("publish", 5)).ends()
    tale = json.loads(json.dumps(whole))
    edit(tale)
    path = tmp_path / records.FILE
    path.write_text("".join(json.dumps(record) + "\n" for record in tale))
    number = next(n for n, record in enumerate(tale, start=1) if n > len(whole) or record != whole[n - 1])
    with pytest.raises(UsageError) as caught:
        read(tmp_path)
    assert str(caught.value).startswith(f"{path}:{number}: ")
    assert "\n" not in str(caught.value)
