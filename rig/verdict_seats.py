"""Each planned seat as the verdict sees it: was it ready, did it see the planted faults, is it like the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rig.lattice import Problem, worst
from rig.records import Record

_SHOWN = ("node", "device", "uuid", "backends", "environment")


def judge_seats(
    run: Record, of: dict[str, list[Record]], assignments: Sequence[Record]
) -> tuple[list[Record], list[Problem]]:
    """The planned seats in their order, each with its own verdict, and everything that stands against one of them.

    Where the config allows retries, a seat that infrastructure took stands against PASS only as far as some of its
    assignments are missing, or `expect` asks for more seats than are left.
    """
    seats: list[Record] = []
    problems: list[Problem] = []
    made_up: list[Record] = []
    for planned in run["seats"]:
        id_ = planned["id"]
        mine = {kind: [r for r in records if r.get("seat") == id_] for kind, records in of.items()}
        own = [a for a in assignments if a["seat"] == id_]
        lost = list(_of_presence(id_, mine))
        tried = list(_of_controls(id_, mine, own)) if run["controls"] else []
        against = [*lost, *tried]
        if lost and _is_made_up(id_, run, assignments, [*lost, *([] if own else tried)]):
            made_up.append(planned)
            against = [Problem("SKIP", f"{p.text}; nothing of it is missing, after a retry") for p in lost]
            against += tried if own else []  # without own results, its controls stand for nothing
        told = mine.get("seat", [{}])[-1] if mine.get("seat") else {}
        shown = {"id": id_} | {key: told.get(key) for key in _SHOWN}
        verdict = worst([*(a["verdict"] for a in own), *(p.verdict for p in (*lost, *tried))])
        spools = {"spool": mine["spool"][-1]["reason"]} if mine.get("spool") else {}
        seats.append(shown | {"backends": shown["backends"] or [], "verdict": verdict} | spools)
        problems += [*against, *(Problem("SKIP", f"seat {id_} spools no more records: {s}") for s in spools.values())]
    return seats, [*problems, *_too_few(run, made_up)]


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


def _is_made_up(id_: str, run: Record, assignments: Sequence[Record], against: Sequence[Problem]) -> bool:
    """Whether nothing is missing of a seat that infrastructure took."""
    theirs = {a["id"] for a in run["plan"] if a["seat"] == id_}
    verdicts = [a["verdict"] for a in assignments if a["id"] in theirs]
    is_allowed = (run["config"].get("retry") or {}).get("infra", 0) > 0
    return is_allowed and "INCOMPLETE" not in verdicts and all(p.verdict == "INCOMPLETE" for p in against)


def _too_few(run: Record, made_up: Sequence[Record]) -> Iterator[Problem]:
    """What `expect` lacks once these seats are gone."""
    for what, kind in (("cpu_nodes", "cpu"), ("gpus", "gpu")):
        wanted, found = ((run.get(key) or {}).get(what, 0) for key in ("expect", "found"))
        left = found - sum(seat.get("kind") == kind for seat in made_up)
        if left < wanted <= found:
            yield Problem("INCOMPLETE", f"expected at least {wanted} {what}, {left} of {found} were left at the end")


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
