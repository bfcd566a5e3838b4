"""The report on the terminal: findings first; plain and narrow where standard output is no terminal, NO_COLOR
respected.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rig.evidence import both_sides, pattern
from rig.stats import Histogram
from rig.table import rows

SUMMARY = "tables on standard output"
_ROWS_MAX = 20
_GROUPS_MAX = 5
_PLAIN_WIDTH = 100
_BRIEF_MAX = 240
_IDS_MAX = 3
_STYLES = {"PASS": "green", "SKIP": "dim", "INCOMPLETE": "yellow"}


def write(report: dict[str, Any], folder: Path) -> None:
    """Print the report; writes no file."""
    is_terminal = sys.stdout.isatty()
    console = _Console(file=sys.stdout, width=None if is_terminal else _PLAIN_WIDTH, highlight=False, emoji=False)
    look = box.SIMPLE_HEAD if is_terminal else None
    for part in (
        _head(report),
        *_findings(report, folder),
        *_reasons(report),
        *_troubles(report),
        *_tables(report, look),
        _foot(report),
    ):
        console.print(part, soft_wrap=isinstance(part, Text) and bool(part.no_wrap))


class _Console(Console):
    """rich's, except that a reader who went away (`| head`) does not change the exit."""

    def on_broken_pipe(self) -> None:
        """Print nothing more."""
        self.quiet = True


def _head(report: dict[str, Any]) -> Text:
    run = report["run"]
    took = f"{run['elapsed_s']:.1f} s" if run["elapsed_s"] is not None else "unfinished"
    return Text(f"{run['name']}  seed {run['seed']}  {len(report['seats'])} seats  {took}", style="bold")


def _findings(report: dict[str, Any], folder: Path) -> Iterator[Text]:
    """One fault shows in many cells: findings of one kind and scenario together, the simplest cell in full."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for finding in report["findings"]:
        scenario = finding["assignment"].partition(":")[0]
        groups.setdefault((finding["kind"], scenario), []).append(finding)
    for (kind, scenario), found in list(groups.items())[:_GROUPS_MAX]:
        simplest = min(found, key=lambda f: (len(f["assignment"]), f["assignment"]))
        yield Text.assemble((f"{kind}: ", "bold red"), _brief(simplest["summary"]))
        yield _note(simplest["assignment"])
        if simplest["replay"]:
            yield _note(f"rig replay {_near(folder / simplest['replay'])}")
        if len(found) > 1:
            yield _note(f"and {len(found) - 1} more {kind} in {scenario}, in report.json")
    if len(groups) > _GROUPS_MAX:
        more = sum(map(len, list(groups.values())[_GROUPS_MAX:]))
        yield _note(f"and {more} more findings of other kinds or scenarios in report.json")


def _troubles(report: dict[str, Any]) -> Iterator[Text]:
    """Assignments that did not pass and left no finding that says why, those with one reason together."""
    groups: dict[tuple[str, str], list[str]] = {}
    for a in report["assignments"]:
        if a["verdict"] not in ("PASS", "SKIP") and not a["findings"]:
            groups.setdefault((a["verdict"], _brief(a["reason"])), []).append(a["id"])
    for (verdict, reason), ids in list(groups.items())[:_ROWS_MAX]:
        yield Text.assemble(_verdict(verdict), f" {len(ids)} x {reason}")
        more = [f"and {len(ids) - _IDS_MAX} more"] if len(ids) > _IDS_MAX else []
        yield from map(_note, ids[:_IDS_MAX] + more)
    if len(groups) > _ROWS_MAX:
        yield _note(f"and {len(groups) - _ROWS_MAX} more reasons in report.json")


def _reasons(report: dict[str, Any]) -> Iterator[Text]:
    for reason in report["run"]["reasons"]:
        yield Text(f"! {_brief(reason)}", style="yellow")


def _tables(report: dict[str, Any], look: box.Box | None) -> Iterator[Table | Text]:
    yield _table("seat node device verdict backends", _seat_rows(report), look)
    if report["controls"]:
        yield _table("control expects backend caught", _control_rows(report), look)
    yield _table("scenario target backend >cells >pass >skip >other >words >seconds", _group_rows(report), look)
    if compared := list(_ratio_rows(report)):
        yield _table("case against >time >its_time >ratio >p10_to_p90 >min", compared, look)
    if searched := list(_search_rows(report)):
        yield _table(">safe_depth for evidence", searched, look)
    latency = list(_latency_rows(report))
    if latency:
        yield _table("target backend operation >n >p50_us >p90_us >p99_us >max_us", latency, look)


def _foot(report: dict[str, Any]) -> Text:
    counts = ", ".join(f"{n} {name}" for name, n in report["verdict_counts"].items() if n) or "no assignment"
    words = f"{report['coverage']['checked_words']:,} words checked"
    return Text.assemble(_verdict(report["verdict"]), f"  {counts}; {words}{_budget(report)}")


def _budget(report: dict[str, Any]) -> str:
    """What a finding is worth: how much correct code was judged without any."""
    told = report.get("false_alarms") or {}
    if not told.get("words"):
        return ""
    counted = f"{told['words']:.2g} words, {told['publishes']:.2g} publishes, {told['late_readers']:.2g} late readers"
    return f"; false alarms: none in {counted} over correct targets"


def _table(columns: str, rows: Iterable[Iterable[Any]], look: box.Box | None) -> Table:
    table = Table(box=look, pad_edge=False, show_edge=False, padding=(0, 0) if look else (0, 2, 0, 0))
    for column in columns.split():
        table.add_column(column.removeprefix(">"), justify="right" if column[0] == ">" else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    return table


def _seat_rows(report: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    for seat in report["seats"][:_ROWS_MAX]:
        usable = " ".join(b["name"] for b in seat["backends"] if b["probe"] == "ok")
        where = seat["node"] or "-", seat["uuid"] or seat["device"] or "-"
        yield seat["id"], *where, _verdict(seat["verdict"]), usable


def _control_rows(report: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    caught: dict[tuple[str, str, str], list[bool]] = {}
    for control in report["controls"]:
        key = (control["name"], control["expected_kind"], control["backend"])
        caught.setdefault(key, []).append(bool(control["caught"]))
    for (name, expected, backend), seats in sorted(caught.items()):
        style = "" if all(seats) else "bold red"
        yield name, expected, backend, Text(f"{sum(seats)}/{len(seats)} seats", style=style)


def _group_rows(report: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for a in report["assignments"]:
        groups.setdefault((a["scenario"], a["target"], a["backend"]), []).append(a)
    for key, group in sorted(groups.items()):
        counts = [sum(a["verdict"] == verdict for a in group) for verdict in ("PASS", "SKIP")]
        other = len(group) - sum(counts)
        words, seconds = sum(a["checked_words"] for a in group), sum(a["elapsed_s"] for a in group)
        yield (
            *key,
            len(group),
            *counts,
            Text(str(other), style="bold red" if other else ""),
            f"{words:,}",
            f"{seconds:.1f}",
        )


def _ratio_rows(report: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Compared cases; target and seat only where there are several."""
    compared = rows(report)
    targets, seats = ({row.target for row in compared}, {row.seat for row in compared})
    for row in compared:
        about = (row.target if len(targets) > 1 else "", row.case, row.seat if len(seats) > 1 else "")
        times = (row.against, row.target_time, row.against_time)
        yield " ".join(filter(None, about)), *times, row.ratio, row.spread, row.at_least


def _search_rows(report: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Each way of stepping with its safe depth, once for all seats that saw the same; targets and backends where there
    are several."""
    searched = [a for a in report["assignments"] if a.get("search")]
    several = [key for key in ("target", "backend") if len({a[key] for a in searched}) > 1]
    seen = dict[tuple[Any, ...], str]()
    for a in searched:
        depth, about = a["search"]["depth"], " ".join(a[key] for key in several)
        key = ("none" if depth is None else depth, ": ".join(filter(None, (about, pattern(a["params"])))))
        seen.setdefault(key, both_sides(a["search"]))
    yield from ((*key, evidence) for key, evidence in list(seen.items())[:_ROWS_MAX])


def _latency_rows(report: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Merged over seats and cells; exact, since histograms merge."""
    merged: dict[tuple[str, str, str], Histogram] = {}
    for a in report["assignments"]:
        for op, summary in a["latency"].items():
            merged.setdefault((a["target"], a["backend"], op), Histogram()).merge(
                Histogram.from_dict(summary["histogram"])
            )
    for key, histogram in sorted(merged.items()):
        yield *key, f"{histogram.n:,}", *(f"{histogram.quantile(q) / 1000:.1f}" for q in (0.5, 0.9, 0.99, 1.0))


def _near(path: Path) -> Path:
    """A path as one types it: from the working folder, if it lies below that."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _note(text: str) -> Text:
    """A line below another one; never broken, so that an id can be copied from it."""
    return Text(f"    {text}".rstrip(), style="dim", no_wrap=True, overflow="ignore")


def _verdict(verdict: str) -> Text:
    return Text(verdict, style=_STYLES.get(verdict, "bold red"))


def _brief(text: str) -> str:
    """The line of a longer text that says most: a traceback's last, otherwise the first."""
    lines = text.strip().splitlines() or [""]
    line = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    return line if len(line) <= _BRIEF_MAX else f"{line[:_BRIEF_MAX]}..."
