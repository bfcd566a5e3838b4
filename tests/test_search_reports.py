"""A search in records and reports: what may stand in a record, and what people read of it."""

import json
import re
from pathlib import Path

import pytest
from doubles import Tale, planned

from rig.controls import defaults
from rig.digest import digest
from rig.errors import UsageError
from rig.evidence import sentence
from rig.record_shapes import check
from rig.reports import console

LATE = "pool `pool0`: read of step 1 (slot 0) returned step 2's words: slot reused; 9 of 16 elements wrong"
FOUND = {
    "depth": 2,
    "evidence": [
        {"depth": 1, "clean": False, "checked_words": 32, "seeds": 1, "kind": "slot_reuse", "summary": LATE},
        {"depth": 2, "clean": True, "checked_words": 4096, "seeds": 3},
    ],
}
TOLD = "depth 1 fails: read of step 1 (slot 0) returned step 2's words: slot reused; depth 2: 4,096 words clean"
ONE = planned(cell="safe_depth:staging:sim:in_flight=2") | {"scenario": "safe_depth", "params": defaults("safe_depth")}


def test_a_line_is_told_with_both_its_sides():
    assert sentence(ONE["params"], FOUND) == f"safe depth: 2 for in_flight 2 x 1 publish: {TOLD}"
    other = ONE["params"] | {"publishes_per_step": 2, "guard": "wait", "idle_every": 3}
    assert sentence(other, FOUND).startswith("safe depth: 2 for in_flight 2 x 2 publishes, idle_every 3, guard wait: ")


def test_reports_show_the_line_once_for_all_seats(tmp_path, capsys):
    plan = [ONE, ONE | {"id": ONE["id"].replace("@s0", "@s1"), "seat": "s1"}]
    tale = Tale(plan)
    for one in plan:
        tale.tell(one, search=FOUND)
    records = tale.ends()
    check(records, Path("records.jsonl"))
    report = digest(records)
    assert [a["search"] for a in report["assignments"]] == [FOUND, FOUND]
    console.write(report, tmp_path)
    lines = capsys.readouterr().out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("safe_depth  for"))
    shown = re.sub(r"\s+", " ", " ".join(line[len("safe_depth") :] for line in lines[at + 1 :]))
    assert shown.count(TOLD[:40]) == 1
    assert max(map(len, lines)) <= 100
    assert "search" not in digest(Tale().tell(planned()).ends())["assignments"][0]


@pytest.mark.parametrize(
    "break_it", [lambda s: s.pop("evidence"), lambda s: s.update(depth=0), lambda s: s.update(depth="2")]
)
def test_a_search_that_no_run_wrote_is_refused(break_it):
    told = json.loads(json.dumps(FOUND))
    break_it(told)
    with pytest.raises(UsageError, match=r"search"):
        check(Tale([ONE]).tell(ONE, search=told).ends(), Path("records.jsonl"))
