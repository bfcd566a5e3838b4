"""An assignment's record while it is made: what the passes came to, and the verdict that follows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rig.bench import Benched
from rig.cause import Finding
from rig.evidence import sentence
from rig.incident import Proved
from rig.judge import Cell, Result, raised
from rig.loading import ImportFailedError
from rig.search import Searched
from rig.traits import one_line


class Body:
    """The assignment's record while it is made."""

    def __init__(self, assignment: Mapping[str, Any]) -> None:
        self.assignment = assignment
        self.verdict, self.reason = "PASS", ""
        self.findings: list[Finding] = []
        self.checked_words = 0
        self.latency: dict[str, Any] = {}
        self.coverage: dict[str, int] = {}
        self.comparison: dict[str, Any] | None = None
        self.search: dict[str, Any] | None = None
        self.driven: Cell | None = None  # what a verify pass found something in

    def skip(self, reason: str) -> None:
        self.verdict, self.reason = "SKIP", reason

    def verified(self, result: Result) -> None:
        self.checked_words = result.checked.words
        self.coverage = result.checked.coverage() | result.ledger
        self._note(result)

    def measured(self, result: Result) -> None:
        if result.measure is not None:
            self.latency = result.measure.latency()
        self._note(result)

    def benched(self, result: Benched) -> None:
        self.latency, self.comparison = result.latency, result.comparison
        self._note(result)

    def proved(self, result: Proved) -> None:
        """The reason keeps what an incident was caught as."""
        self.checked_words, self.coverage, self.driven = result.checked_words, result.coverage, result.driven
        self._note(result)

    def searched(self, result: Searched) -> None:
        """PASS where a depth was found, FAIL where none is enough; what was seen is evidence, not findings."""
        self.search = {"depth": result.depth, "evidence": result.evidence}
        self.checked_words, self.coverage = result.checked_words, result.coverage
        if result.lost is not None:
            self.verdict, self.reason = "INCOMPLETE", result.lost
        elif result.skip is None and result.hang is None:
            self.verdict = "PASS" if result.depth is not None else "FAIL"
            self.reason = sentence(self.assignment["params"], self.search)
        else:
            self._note(result)

    def replayed(self, replay: Mapping[str, Any]) -> None:
        """A finding that has no replay says why."""
        if replay["ops"] is None:
            self.reason = "; ".join(filter(None, [self.reason, f"{replay['kind']}: {replay['note']}"]))

    def _note(self, result: Result | Benched | Searched | Proved) -> None:
        if result.skip is not None:
            self.skip(result.skip)
        elif result.hang is not None:
            self.verdict, self.reason = "HANG", f"timeout_s={self.assignment['timeout_s']:g}: {result.hang}"
        elif not isinstance(result, Searched) and result.note is not None:
            self.reason = result.note

    def record(self, *, elapsed_s: float) -> dict[str, Any]:
        """The body; findings make it a FAIL unless the rig itself failed."""
        verdict, reason = self.verdict, self.reason
        if self.findings and verdict in ("PASS", "SKIP"):
            more = f" (and {len(self.findings) - 1} more)" if len(self.findings) > 1 else ""
            verdict, reason = "FAIL", "; ".join(filter(None, [self.findings[0].summary + more, reason]))
        if verdict != "ERROR":  # a traceback of ours keeps its lines
            reason = one_line(reason)
        asked = {key: self.assignment[key] for key in ("id", "scenario", "target", "seat", "backend", "mode", "params")}
        return {
            "type": "assignment",
            **asked,
            "verdict": verdict,
            "reason": reason,
            "attempt": 1,
            "elapsed_s": round(elapsed_s, 3),
            "checked_words": self.checked_words,
            "findings": [finding.kind for finding in self.findings],
            "latency": self.latency,
            "coverage": self.coverage,
        } | {key: kept for key in ("comparison", "search") if (kept := getattr(self, key)) is not None}


def not_imported(error: ImportFailedError, target: Mapping[str, Any], body: Body) -> Iterator[Finding]:
    """A built-in target, and whatever is only compared, may be missing; any other failure is a finding."""
    may_be_missing = target["kind"] == "builtin" or error.name != target["name"]
    if may_be_missing and isinstance(error.__cause__, ModuleNotFoundError):
        body.skip(f"not installed here: {error.__cause__}")
        return
    yield raised(error.__cause__ or error, f"import of {error.name}")
