"""Records to what every report shows: the contents of report.json, judged and sorted; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from rig.records import Record
from rig.verdict import Judgement, judge

SCHEMA = 1
FAILURES_MAX = 1_000  # files under failures/; findings beyond have no replay
_CONTROL = ("name", "seat", "backend", "expected_kind", "caught", "detail")
_ASSIGNMENT: tuple[str, ...] = (
    "id",
    "scenario",
    "target",
    "seat",
    "backend",
    "mode",
    "params",
    "verdict",
    "reason",
    "attempt",
)
_ASSIGNMENT += ("elapsed_s", "checked_words", "findings", "latency")
_COMPARED = ("comparison", "ratio_min")  # only of assignments that compared something
_FINDING = ("kind", "summary", "assignment", "first", "overwriter")
_RUN: tuple[str, ...] = (
    "name",
    "seed",
    "start",
    "transport",
    "config_file",
    "overrides",
    "only",
    "command",
    "config",
    "targets",
    "baselines",
)
_RUN += ("expect", "found", "versions")


def digest(records: Iterable[Record]) -> dict[str, Any]:
    """The report of a run: schema, run, verdict, exit_code, verdict_counts, findings, seats, controls, assignments,
    coverage, false_alarms.
    """
    records = list(records)
    told = judge(records)
    run = next(r for r in records if r["type"] == "run")
    end = next((r for r in reversed(records) if r["type"] == "end"), {})
    about = {"id": run["run"]} | {key: run.get(key) for key in _RUN} | {"num_planned": len(run["plan"])}
    for key in ("targets", "baselines"):  # a file's source stays in the records
        about[key] = about[key] and {
            name: {k: v for k, v in spec.items() if k != "source"} for name, spec in about[key].items()
        }
    about |= {"end": end.get("end"), "elapsed_s": end.get("elapsed_s"), "reasons": list(told.reasons)}
    about |= {"num_duplicates": told.num_duplicates, "num_stale": told.num_stale}
    return {
        "schema": SCHEMA,
        "run": about,
        "verdict": told.verdict,
        "exit_code": told.exit_code,
        "verdict_counts": told.counts,
        "findings": _findings(told),
        "seats": told.seats,
        "controls": [{key: control.get(key) for key in _CONTROL} for control in told.controls],
        "assignments": [
            {key: a.get(key) for key in (*_ASSIGNMENT, *(_COMPARED if a.get("comparison") else ()))}
            | {key: a[key] for key in ("search", "attempts") if a.get(key)}
            for a in told.assignments
        ],
        "coverage": coverage(told.assignments),
        "false_alarms": run.get("false_alarms"),
    }


def coverage(assignments: Sequence[Record]) -> dict[str, Any]:
    """What was verified: words in all and by scenario, target and backend, and the sum of each counter."""
    counters: Counter[str] = Counter()
    for assignment in assignments:
        counters.update({key: n for key, n in assignment["coverage"].items() if isinstance(n, int | float)})
    words = {what: dict(sorted(_sum(assignments, what).items())) for what in ("scenario", "target", "backend", "seat")}
    return {
        "checked_words": sum(a["checked_words"] for a in assignments),
        "checked_words_by": words,
        "counters": dict(sorted(counters.items())),
    }


def _sum(assignments: Sequence[Record], what: str) -> Counter[str]:
    sums: Counter[str] = Counter()
    for assignment in assignments:
        sums[assignment[what]] += assignment["checked_words"]
    return sums


def _findings(told: Judgement) -> list[dict[str, Any]]:
    """Findings in the order of their records, each with the file that re-runs it."""
    findings = [{key: finding.get(key) for key in _FINDING} for finding in told.findings]
    for number, finding in enumerate(findings, start=1):
        finding["replay"] = f"failures/{number}.yaml" if number <= FAILURES_MAX else None
    return findings
