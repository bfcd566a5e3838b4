"""The comparisons of a report as rows, and as the Markdown tables of a README; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rig.errors import UsageError
from rig.stats import Histogram

_STEPS = "steps"  # the one case whose time is better read as a rate


class Row(NamedTuple):
    """One compared case of one assignment, in the order of a table's columns."""

    case: str
    seat: str
    target: str
    target_time: str
    target_p99: str
    against: str
    against_time: str
    against_p99: str
    ratio: str
    spread: str
    at_least: str


_HEAD: tuple[str, ...] = ("case", "seat", "target", "time", "p99", "against", "its time", "its p99")
_HEAD += ("times as fast", "10th to 90th percentile", "at least")


def rows(report: dict[str, Any]) -> list[Row]:
    """Every ratio of a report, in the order of its assignments."""
    found = []
    for a, about in _compared(report):
        for case, told in a["comparison"]["ratios"].items():
            bound = (a.get("ratio_min") or {}).get(case)
            found.append(
                Row(
                    case=f"{case}{about}",
                    seat=a["seat"],
                    target=a["target"],
                    against=told["against"],
                    target_time=_time(case, told["target_ns"]),
                    target_p99=_p99(case, a["latency"]),
                    against_time=_time(case, told["baseline_ns"]),
                    against_p99=_p99(case, a["comparison"]["latency"]),
                    ratio=f"{told['ratio']:.2f}",
                    spread=f"{told['p10']:.2f} to {told['p90']:.2f}",
                    at_least="" if bound is None else f"{bound:g}",
                )
            )
    return found


def markdown(report: dict[str, Any]) -> Iterator[str]:
    """The lines of the tables. `UsageError` if nothing was compared."""
    found = rows(report)
    if not found:
        raise UsageError(f"{report['run']['name']}: nothing was compared in this run; expected `compare` in its config")
    yield _caption(report)
    yield ""
    with_seat = len({row.seat for row in found}) > 1
    lines = [_HEAD, *(row._replace(case=f"`{row.case}`", at_least=row.at_least or "-") for row in found)]
    yield from _lines([line if with_seat else (line[0], *line[2:]) for line in lines])
    pinned = list(_pinned(report))
    if pinned:
        yield ""
        yield from _lines([("peak pinned memory", "target", "MiB", "against", "MiB"), *pinned])


def _caption(report: dict[str, Any]) -> str:
    """Versions, machines and date, all from the records."""
    run = report["run"]
    versions: dict[str, str] = {}
    for a, _ in _compared(report):
        versions |= a["comparison"]["versions"]
    environments = [seat.get("environment") or {} for seat in report["seats"]]
    machines = sorted({_machine(environment) for environment in environments})
    sides = ", ".join(f"{name} {version}".strip() for name, version in sorted(versions.items()))
    return f"`{run['name']}` on {' and '.join(machines)}; {sides}; {str(run['start'])[:10]}"


def _machine(environment: dict[str, Any]) -> str:
    what = environment.get("gpu") or f"{environment.get('cpus', '?')} CPUs"
    return f"{what} (torch {environment.get('torch', '?')}, Python {environment.get('python', '?')})"


def _compared(report: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Assignments with ratios, and what tells each from the others of its scenario."""
    all_ = [a for a in report["assignments"] if (a.get("comparison") or {}).get("ratios")]
    for a in all_:
        twins = [other["params"] for other in all_ if other["scenario"] == a["scenario"]]
        differing = [key for key in sorted(a["params"]) if len({repr(params.get(key)) for params in twins}) > 1]
        yield a, "".join(f" {key}={a['params'][key]}" for key in differing)


def _pinned(report: dict[str, Any]) -> Iterator[list[str]]:
    for a, about in _compared(report):
        for bout, told in a["comparison"]["pinned_bytes"].items():
            if "target" in told and "baseline" in told and a["comparison"]["baseline"]:
                sizes = [f"{told[side] / (1 << 20):.2f}" for side in ("target", "baseline")]
                yield [f"`{bout}{about}`", a["target"], sizes[0], a["comparison"]["baseline"], sizes[1]]


def _time(case: str, ns: float) -> str:
    if case == _STEPS:
        return f"{1e9 / max(ns, 1.0):,.0f} steps/s"
    return f"{ns / 1e6:,.2f} ms" if ns >= 1e6 else f"{ns / 1e3:,.1f} us"


def _p99(case: str, latency: Mapping[str, Any]) -> str:
    """Of all repetitions; a rate has none, since its samples are whole rounds."""
    if case == _STEPS or case not in latency:
        return "-"
    return _time(case, Histogram.from_dict(latency[case]["histogram"]).quantile(0.99))


def _lines(table: Sequence[Sequence[str]]) -> Iterator[str]:
    for number, cells in enumerate(table):
        yield f"| {' | '.join(cells)} |"
        if number == 0:
            yield "|" + "---|" * len(cells)
