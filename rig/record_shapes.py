"""What verdict and reports take for granted about records, checked when they are read from a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from rig import limits, problems
from rig.errors import UsageError
from rig.marks import Marks
from rig.search_shapes import Search
from rig.stats import NUM_BUCKETS
from rig.timing_shapes import Comparison, Count, Latency, Seconds, Shape


def _is_id(text: str) -> str:
    if text.count("/") < 4 or not text.rpartition("/")[2].isdecimal():
        raise ValueError("run/subject/attempt/incarnation/seq")
    return text


def _is_limit(name: str) -> str:
    if limits.parse(name) is None:
        raise ValueError(limits.FORM)
    return name


Verdict = Literal["SKIP", "PASS", "INCOMPLETE", "FAIL", "HANG", "INVALID", "ERROR"]


class Kept(Shape):
    id: Annotated[str, AfterValidator(_is_id)]
    seat: str = ""
    incarnation: str = ""


class Planned(Shape):
    id: str
    scenario: str
    target: str
    seat: str
    backend: str
    mode: Literal["verify", "measure", "both"]
    params: dict[str, Any]
    limits: dict[Annotated[str, AfterValidator(_is_limit)], float]
    ratio_min: dict[str, float] = Field(default_factory=dict)
    seed: int
    timeout_s: Seconds


class PlannedSeat(Shape):
    id: str


class Config(Shape):
    reports: list[str]
    backends: list[str]


class Target(Shape):
    name: str
    kind: Literal["builtin", "module", "file"]
    path: str | None = None
    source: str | None = None


class Run(Kept):
    run: str
    name: str
    seed: int
    controls: bool
    config: Config
    config_file: str | None
    overrides: list[str]
    transport: str
    targets: dict[str, Target]
    expect: dict[str, Count]
    found: dict[str, Count]
    seats: list[PlannedSeat]
    plan: list[Planned]


class Backend(Shape):
    name: str
    probe: str


class Seat(Kept):
    seat: str
    incarnation: str
    node: str | None
    device: str | None
    uuid: str | None
    backends: list[Backend]
    environment: dict[str, Any]
    versions: dict[str, Any] = Field(default_factory=dict)


class Control(Kept):
    seat: str
    name: str
    backend: str
    expected_kind: str
    caught: bool | None
    detail: str


class Controls(Kept):
    seat: str
    num: Count


class Finding(Kept):
    assignment: str
    kind: str
    summary: str
    first: dict[str, Any] | None = None
    overwriter: dict[str, Any] | None = None


class NumOps(Shape):
    before: Count | None
    after: Count | None


class Replay(Kept):
    assignment: str
    kind: str
    summary: str
    expected: dict[str, Any] | None
    params: dict[str, Any]
    ops: list[dict[str, Any]] | None
    num_ops: NumOps
    note: str


class Assignment(Kept):
    assignment: str
    verdict: Verdict
    reason: str
    attempt: Count
    elapsed_s: Seconds
    checked_words: Count
    findings: list[str]
    latency: dict[str, Latency]
    coverage: dict[str, Any]
    comparison: Comparison | None = None
    search: Search | None = None


class Lost(Kept):
    seat: str
    verdict: Verdict
    during: str
    reason: str


class Spool(Kept):
    seat: str
    reason: str


class Source(Shape):
    where: str
    seat: str
    num_new: Count


class Collected(Kept):
    sources: list[Source]


class End(Kept):
    elapsed_s: Seconds | None = None
    interrupted: str | None = None
    error: str | None = None
    missing: list[str] | None = None
    num_duplicates: Count | None = None


_SHAPES: dict[str, type[Kept]] = {
    **{"run": Run, "seat": Seat, "control": Control, "controls": Controls, "finding": Finding},
    **{"replay": Replay, "assignment": Assignment, "lost": Lost, "end": End},
    **{"spool": Spool, "collected": Collected},
}


def check(records: Sequence[dict[str, Any]], path: Path) -> None:
    """`UsageError` with file and line for the first record that was not written by a run."""
    for number, record in enumerate(records, start=1):
        place = f"{path}:{number}"
        shape = _SHAPES.get(record["type"], Kept)
        try:
            told = shape.model_validate(record)
        except ValidationError as error:
            raise UsageError(problems.of_model(error, Marks(place), shape)) from None
        if shape is Run and number > 1:
            raise UsageError(f"{place}: a second run record; expected the records of one run")
        if isinstance(told, Assignment):
            theirs = told.comparison.latency if told.comparison else {}
            for op, latency in [*told.latency.items(), *theirs.items()]:
                if any(index >= NUM_BUCKETS for index, _ in latency.histogram.counts):
                    raise UsageError(f"{place}: latency.{op}: a bucket beyond the last one, {NUM_BUCKETS - 1}")
