"""Comparisons in verdict and reports: limits at the printed figure, tables from records alone."""

from typing import Any

import pytest
from doubles import Tale, latency, planned
from test_cli import rig

from rig.digest import digest
from rig.errors import UsageError
from rig.records import FILE, RecordLog, read
from rig.table import markdown, rows
from rig.verdict import judge

CELL = "hot_path:staging:cuda_uva:compare=vllm"


def compared(*, bars: dict[str, float] | None = None, seat: str = "s0", cell: str = CELL, **params: Any) -> Any:
    more = {"scenario": "hot_path", "baseline": "vllm", "ratio_min": bars or {}, "params": {"rounds": 3} | params}
    return planned(seat, cell=cell, mode="measure") | more


def told(case: str = "elements_each", ratio: float = 2.5, **more: Any) -> dict[str, Any]:
    figures = {"against": "vllm", "ratio": ratio, "p10": 2.25, "p90": 2.75, "rounds": 3}
    return {
        "baseline": "vllm",
        "versions": {"staging": "0.1.0", "vllm": "0.33.0"},
        "ratios": {case: figures | {"target_ns": 80_000.0, "baseline_ns": 2e6} | more},
        "latency": latency(case, 200_000),
        "pinned_bytes": {"hot_path": {"target": 3 << 20, "baseline": 5 << 19, "manager": 3 << 20}},
    }


def tale(one: Any, comparison: Any, **more: Any) -> list[dict[str, Any]]:
    story = Tale([one], start="2026-11-30T10:00:00").tell(
        one, checked_words=0, latency=latency("elements_each", 80_000), comparison=comparison, **more
    )
    return story.ends()


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [(2.5, ("PASS", 0)), (2.0, ("PASS", 0)), (1.996, ("PASS", 0)), (1.994, ("FAIL", 3)), (0.5, ("FAIL", 3))],
)
def test_a_ratio_below_its_limit_is_exit_3_at_the_figure_that_is_printed(ratio: float, verdict: Any) -> None:
    one = compared(bars={"elements_each": 2})
    judged = judge(tale(one, told(ratio=ratio)))
    assert (judged.verdict, judged.exit_code) == verdict
    assert [finding["kind"] for finding in judged.findings] == (["latency"] if verdict[0] == "FAIL" else [])


def test_a_broken_ratio_says_how_far_and_how_sure() -> None:
    (finding,) = judge(tale(compared(bars={"elements_each": 2}), told(ratio=1.5))).findings
    assert finding["summary"] == (
        "elements_each is 1.50 times as fast as vllm (10th to 90th percentile 2.25 to 2.75); ratio_min 2"
    )


def test_a_case_that_was_not_compared_is_no_pass() -> None:
    judged = judge(tale(compared(bars={"fused_each": 2}), told()))
    assert (judged.verdict, judged.exit_code) == ("INCOMPLETE", 4)
    assert judged.assignments[0]["reason"] == "ratio_min of fused_each: it was not compared here"


def test_a_skipped_comparison_breaks_no_ratio() -> None:
    one = compared(bars={"elements_each": 2})
    judged = judge(tale(one, None, verdict="SKIP", reason="not installed here: No module named 'vllm'"))
    assert (judged.verdict, judged.exit_code) == ("SKIP", 4)


def test_each_seat_is_judged_by_its_own_ratio() -> None:
    pair = [compared(bars={"elements_each": 2}, seat=seat) for seat in ("s0", "s1")]
    story = Tale(pair)
    for one, ratio in zip(pair, (1.5, 3.0), strict=True):
        story.tell(one, latency=latency("elements_each", 1), comparison=told(ratio=ratio))
    judged = judge(story.ends())
    assert [a["verdict"] for a in judged.assignments] == ["FAIL", "PASS"]


def test_report_carries_the_comparison_whole() -> None:
    (assignment,) = digest(tale(compared(bars={"elements_each": 2}), told()))["assignments"]
    assert assignment["comparison"] == told()
    assert assignment["ratio_min"] == {"elements_each": 2}


def test_markdown_comes_with_versions_machine_and_date() -> None:
    report = digest(tale(compared(bars={"elements_each": 2}), told()))
    report["seats"][0]["environment"] = {"gpu": "NVIDIA H200", "torch": "2.11.0", "python": "3.12.3"}
    assert list(markdown(report)) == [
        "`test` on NVIDIA H200 (torch 2.11.0, Python 3.12.3); staging 0.1.0, vllm 0.33.0; 2026-11-30",
        "",
        "| case | target | time | p99 | against | its time | its p99 "
        "| times as fast | 10th to 90th percentile | at least |",
        "|---|---|---|---|---|---|---|---|---|---|",
        "| `elements_each` | staging | 80.0 us | 80.0 us | vllm | 2.00 ms | 200.0 us | 2.50 | 2.25 to 2.75 | 2 |",
        "",
        "| peak pinned memory | target | MiB | against | MiB |",
        "|---|---|---|---|---|",
        "| `hot_path` | staging | 3.00 | vllm | 2.50 |",
    ]


def test_cells_are_told_apart_by_what_differs_and_steps_are_a_rate() -> None:
    cells = [compared(cell=f"{CELL},gpu_ms={ms}", gpu_ms=ms) for ms in (0, 2)]
    story = Tale(cells)
    for one in cells:
        story.tell(one, comparison=told("steps", target_ns=500_000.0))
    assert [(row.case, row.target_time) for row in rows(digest(story.ends()))] == [
        ("steps gpu_ms=0", "2,000 steps/s"),
        ("steps gpu_ms=2", "2,000 steps/s"),
    ]


def test_a_run_that_compared_nothing_has_no_table() -> None:
    one = planned()
    with pytest.raises(UsageError, match="nothing was compared in this run"):
        list(markdown(digest(Tale([one]).tell(one).ends())))


def test_table_is_a_verb(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    log = RecordLog(tmp_path / FILE)
    log.append(tale(compared(), told()))
    log.close()
    assert rig("table", tmp_path) == 0
    assert "| `elements_each` | staging |" in capsys.readouterr().out
    assert rig("table", tmp_path / "none") == 2


@pytest.mark.parametrize("wrong", [{"ratio": -1.0}, {"p10": "x"}, {"against": None}])
def test_a_ratio_of_another_shape_is_refused_when_it_is_read(tmp_path: Any, wrong: dict[str, Any]) -> None:
    log = RecordLog(tmp_path / FILE)
    log.append(tale(compared(), told(**wrong)))
    log.close()
    with pytest.raises(UsageError, match=r"comparison\.ratios\.elements_each\."):
        read(tmp_path)


def test_console_shows_each_ratio_in_one_line(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from rig import registry

    report = digest(tale(compared(bars={"elements_batch_shuffled": 2}), told("elements_batch_shuffled")))
    registry.load("reports", "console").write(report, tmp_path)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("elements_batch_shuffled")]
    assert " ".join(line.split()) == "elements_batch_shuffled vllm 80.0 us 2.00 ms 2.50 2.25 to 2.75 2"
