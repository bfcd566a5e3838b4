"""Each planned seat as the verdict sees it: was it ready, did it see the planted faults, is it like the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rig.lattice import Problem, worst
from rig.records import Record

_SHOWN = ("node", "device", "uuid", "backends", "environment")


def judge_seats(
    run: Record, of: dict[str, list[Record]], assignments: Sequence[Record]
) -> tuple[list[Record], list[Problem]]:
    """The planned seats in their order, each with its own verdict, and everything that stands against one of them."""
    seats, problems = [], []
    for planned in run["seats"]:
        id_ = planned["id"]
        mine = {kind: [r for r in records if r.get("seat") == id_] for kind, records in of.items()}
        own = [a for a in assignments if a["seat"] == id_]
        found = [*_of_presence(id_, mine), *(_of_controls(id_, mine, own) if run["controls"] else ())]
        told = mine.get("seat", [{}])[-1] if mine.get("seat") else {}
        shown = {"id": id_} | {key: told.get(key) for key in _SHOWN}
        verdict = worst([*(a["verdict"] for a in own), *(p.verdict for p in found)])
        seats.append(shown | {"backends": shown["backends"] or [], "verdict": verdict})
        problems += found
    return seats, problems


def unlike_machines(seats: Sequence[Record]) -> Iterator[Problem]:
    """Two seats on one GPU, or seats whose results cannot be compared."""
    by_gpu: dict[str, list[str]] = {}
    for seat in seats:
        if seat.get("uuid"):
            by_gpu.setdefault(seat["uuid"], []).append(seat["seat"])
    for uuid, sharing in sorted(by_gpu.items()):
        if len(sharing) > 1:
            yield Problem("ERROR", f"seats {' and '.join(sorted(sharing))} are on one GPU, {uuid}")
    for what in ("ray", "python", "gpu"):
        told = [{**seat.get("versions", {}), "gpu": seat.get("environment", {}).get("gpu")} for seat in seats]
        values = {str(versions[what]) for versions in told if versions.get(what)}
        if len(values) > 1:
            yield Problem("INCOMPLETE", f"seats differ in {what}: {' and '.join(sorted(values))}")


def _of_presence(id_: str, mine: dict[str, list[Record]]) -> Iterator[Problem]:
    if not mine.get("seat"):
        yield Problem("INCOMPLETE", f"seat {id_} did not become ready")
    for lost in mine.get("lost", []):
        yield Problem(lost["verdict"], f"seat {id_} was lost during {lost['during']}: {lost['reason']}")


def _of_controls(id_: str, mine: dict[str, list[Record]], own: Sequence[Record]) -> Iterator[Problem]:
    """Each control caught, all of them tried, and at least one on every backend that passed anything."""
    controls = mine.get("control", [])
    for control in controls:
        name = f"control {control['name']} on {id_} ({control['backend']})"
        if control["caught"] is None:
            yield Problem("INCOMPLETE", f"{name} was not tried: {control['detail']}")
        elif not control["caught"]:
            yield Problem("INVALID", f"{name} was not caught as {control['expected_kind']}: {control['detail']}")
    done = mine.get("controls", [])
    if not done or done[-1]["num"] != len(controls):
        wanted = done[-1]["num"] if done else "all"
        yield Problem("INCOMPLETE", f"controls of {id_} did not finish: {len(controls)} of {wanted} recorded")
    passed = {a["backend"] for a in own if a["verdict"] == "PASS"}
    for backend in sorted(passed - {c["backend"] for c in controls}):
        yield Problem("INCOMPLETE", f"no control was tried on backend {backend} of {id_}")
