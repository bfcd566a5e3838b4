"""Each planned assignment as the verdict sees it: worker's word, corrected by what the records show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rig import limits
from rig.lattice import ORDER, worst
from rig.records import Record, incarnation

_BLANK: Record = {
    **{"reason": "", "attempt": 1, "elapsed_s": 0.0, "checked_words": 0},
    **{"latency": {}, "coverage": {}, "comparison": None, "search": None},
}
_ATTEMPT = ("attempt", "seat", "verdict", "reason", "elapsed_s")
_PLANNED = ("id", "scenario", "target", "seat", "backend", "mode", "params")


def judge_assignments(
    plan: Sequence[Record], records: Sequence[Record], findings: Sequence[Record]
) -> tuple[list[Record], list[Record]]:
    """The assignments, sorted by id, and a `latency` finding for each limit that one of them broke.

    Of several attempts the last counts, and all are shown; of several records of one attempt the worst, except that
    the driver's INCOMPLETE only stands in for a worker's word that it never got.
    """
    kinds: dict[str, Counter[str]] = {}
    for finding in findings:
        kinds.setdefault(finding["assignment"], Counter())[finding["kind"]] += 1
    told: dict[str, list[Record]] = {}
    for record in records:
        told.setdefault(record["assignment"], []).append(record)
    judged: dict[str, Record] = {}
    for planned in sorted(plan, key=lambda a: str(a["id"])):
        attempts = _attempts(told.get(planned["id"], []))
        one = _judge(planned, attempts[-1] if attempts else None, kinds.get(planned["id"], Counter()))
        if len(attempts) > 1:
            shown = [{key: record.get(key) for key in _ATTEMPT} for record in attempts]
            one |= {"seat": attempts[-1].get("seat") or planned["seat"], "attempts": shown}
        judged[planned["id"]] = one
    broken = _apply_limits(plan, judged)
    return list(judged.values()), broken


def _attempts(records: Sequence[Record]) -> list[Record]:
    """The record that counts of each attempt, in order."""
    best: dict[int, Record] = {}
    for record in sorted(records, key=_weight):
        best[record["attempt"]] = record
    return [best[attempt] for attempt in sorted(best)]


def _weight(record: Record) -> int:
    stands_in = record["verdict"] == "INCOMPLETE" and incarnation(record) == "driver"
    return -1 if stands_in else ORDER.index(record["verdict"])


def _judge(planned: Record, record: Record | None, found: Counter[str]) -> Record:
    """A PASS that checked nothing is a SKIP, and one beside findings is a FAIL."""
    shown = {key: planned[key] for key in _PLANNED} | {"ratio_min": planned.get("ratio_min") or {}}
    if record is None:
        verdict = "FAIL" if found else "INCOMPLETE"
        return _BLANK | shown | {"verdict": verdict, "reason": "no record", "findings": sorted(found.elements())}
    listed: Counter[str] = Counter(record.get("findings") or [])
    kinds = sorted((found | listed).elements())
    told = {key: record[key] for key in _BLANK if record.get(key) is not None}
    judged = _BLANK | told | shown | {"verdict": record["verdict"], "findings": kinds}
    if record["verdict"] in ("PASS", "SKIP", "INCOMPLETE") and kinds:
        return judged | {"verdict": "FAIL", "reason": judged["reason"] or f"findings: {', '.join(kinds)}"}
    if record["verdict"] != "PASS":
        return judged
    if judged["mode"] == "measure":
        nothing = "" if any(summary["n"] for summary in judged["latency"].values()) else "no samples"
    else:
        nothing = "" if judged["checked_words"] else "zero checked words"
    return judged | {"verdict": "SKIP", "reason": nothing} if nothing else judged


def _apply_limits(plan: Sequence[Record], judged: dict[str, Record]) -> list[Record]:
    """Fail, in place, the passed assignments that broke a limit or a comparison; returns the findings."""
    cells: dict[str, list[Record]] = {}
    for planned in plan:
        if (planned["limits"] or planned.get("ratio_min")) and judged[planned["id"]]["verdict"] == "PASS":
            cells.setdefault(planned["id"].rpartition("@")[0], []).append(planned)
    findings: list[Record] = []
    for _, cell in sorted(cells.items()):
        told = [judged[p["id"]] for p in cell]
        slow = limits.check(told, cell[0]["limits"])
        for broken in (*slow, *(b for a in told for b in limits.check_ratios(a, cell[0].get("ratio_min") or {}))):
            before = judged[broken.assignment]
            verdict = worst([before["verdict"], "FAIL" if broken.is_judged else "INCOMPLETE"])
            after = before | {"verdict": verdict, "reason": before["reason"] or broken.text}
            if broken.is_judged:
                after["findings"] = [*before["findings"], "latency"]
                findings.append(_finding(before, broken.text))
            judged[broken.assignment] = after
    return findings


def _finding(assignment: Record, text: str) -> Record:
    about = {"assignment": assignment["id"], "seat": assignment["seat"]}
    return {"type": "finding", "kind": "latency", "summary": text, "first": None, "overwriter": None} | about
