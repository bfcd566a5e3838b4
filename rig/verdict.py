"""Records to a verdict: pure, so that the same records are judged the same way anywhere and at any time.

SKIP < PASS < INCOMPLETE < FAIL < HANG < INVALID < ERROR, and the worst one is the run's. Reasons say what stands
against PASS besides the assignments themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rig.lattice import ORDER, Problem, worst
from rig.records import Record, distinct, incarnation
from rig.verdict_assignments import judge_assignments
from rig.verdict_seats import judge_seats, unlike_machines

EXITS = {"SKIP": 4, "PASS": 0, "INCOMPLETE": 4, "FAIL": 1, "HANG": 5, "INVALID": 6, "ERROR": 70}
EXIT_USAGE, EXIT_LIMITS, EXIT_INTERRUPTED = 2, 3, 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The verdict and everything it was reached from, sorted by id."""

    verdict: str
    exit_code: int
    reasons: tuple[str, ...]
    counts: dict[str, int]
    seats: list[Record]
    controls: list[Record]
    assignments: list[Record]
    findings: list[Record]
    num_duplicates: int
    num_stale: int


def judge(records: Iterable[Record]) -> Judgement:
    """Judge all records of one run; its `run` record names what was planned and expected."""
    kept, num_duplicates, conflicts = distinct(records)
    kept, num_stale = _without_stale(kept)
    of: dict[str, list[Record]] = {}
    for record in kept:
        of.setdefault(record["type"], []).append(record)
    run, end = of["run"][0], of.get("end", [None])[-1]
    assignments, latency = judge_assignments(run["plan"], of.get("assignment", []), of.get("finding", []))
    seats, problems = judge_seats(run, of, assignments)
    problems += [*_of_run(run, end), *unlike_machines(of.get("seat", []))]
    problems += _of_collecting(of.get("collected", []))
    problems += [Problem("ERROR", f"two records with the id {id_} differ") for id_ in conflicts]
    problems += [Problem("ERROR", f"a record of {id_}, which was not planned") for id_ in _unplanned(run, of)]
    verdict = worst([*(a["verdict"] for a in assignments), *(p.verdict for p in problems)])
    return Judgement(
        verdict=verdict,
        exit_code=_exit_code(verdict, end, assignments, problems),
        reasons=tuple(dict.fromkeys(p.text for p in sorted(problems, key=lambda p: -ORDER.index(p.verdict)))),
        counts={name: sum(a["verdict"] == name for a in assignments) for name in ORDER},
        seats=seats,
        controls=of.get("control", []),
        assignments=assignments,
        findings=[*of.get("finding", []), *latency],
        num_duplicates=num_duplicates + ((end or {}).get("num_duplicates") or 0),
        num_stale=num_stale,
    )


def _without_stale(records: Sequence[Record]) -> tuple[list[Record], int]:
    """Without the records of a seat's other lives: the one in its seat record counts, and the driver's word."""
    current = {r["seat"]: r["incarnation"] for r in records if r["type"] == "seat"}
    kept = [r for r in records if incarnation(r) in ("driver", current.get(r.get("seat"), incarnation(r)))]
    return kept, len(records) - len(kept)


def _of_run(run: Record, end: Record | None) -> Iterator[Problem]:
    """What the run as a whole lacks."""
    for what, wanted in sorted((run.get("expect") or {}).items()):
        found = (run.get("found") or {}).get(what, 0)
        if found < wanted:
            yield Problem("INCOMPLETE", f"expected at least {wanted} {what}, found {found}")
    if not run["controls"]:
        yield Problem("SKIP", "controls were off: no planted fault was tried on any seat")
    if not run["seats"]:
        yield Problem("INCOMPLETE", "no seat: there is no GPU, or no node with CPUs, that the config asks for")
    elif not run["plan"]:
        yield Problem("INCOMPLETE", "nothing was planned")
    if end is None:
        yield Problem("INCOMPLETE", "no end record: the driver was killed, or is still running")
        return
    if end.get("interrupted"):
        yield Problem("INCOMPLETE", f"interrupted by {end['interrupted']}")
    if end.get("error"):
        yield Problem("ERROR", f"the rig failed: {end['error'].strip().splitlines()[-1]}")
    yield from (Problem("INCOMPLETE", text) for text in end.get("missing") or ())


def _of_collecting(records: Iterable[Record]) -> Iterator[Problem]:
    """Where records came from that the driver never got."""
    for record in records:
        for source in record["sources"]:
            yield Problem(
                "SKIP", f"{source['num_new']} records of {source['seat']} were collected from {source['where']}"
            )


def _unplanned(run: Record, of: dict[str, list[Record]]) -> list[str]:
    planned = {a["id"] for a in run["plan"]}
    told = [r["assignment"] for kind in ("assignment", "finding") for r in of.get(kind, [])]
    return sorted(set(told) - planned)


def _exit_code(verdict: str, end: Record | None, assignments: Sequence[Record], problems: Sequence[Problem]) -> int:
    """The verdict's exit; 130 after a signal, 3 where nothing but limits stands against PASS."""
    if end is not None and end.get("interrupted"):
        return EXIT_INTERRUPTED
    if verdict != "FAIL":
        return EXITS[verdict]
    other = any(a["verdict"] not in ("PASS", "SKIP") and set(a["findings"]) != {"latency"} for a in assignments)
    other |= any(p.verdict not in ("PASS", "SKIP") for p in problems)
    return EXITS["FAIL"] if other else EXIT_LIMITS
