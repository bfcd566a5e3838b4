"""`rig doctor` for people: tables and a line of advice for each finding; plain where nobody looks."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_PLAIN_WIDTH = 100
_GOOD, _IDLE = ("ok", "live"), ("not possible", "refused")  # memory that cannot be mapped harms nobody


def show(report: dict[str, Any]) -> None:
    """Print what `rig.doctor.report` returns."""
    is_terminal = sys.stdout.isatty()
    console = Console(width=None if is_terminal else _PLAIN_WIDTH, highlight=False, emoji=False)
    look = box.SIMPLE_HEAD if is_terminal else None
    console.print(_table("machine", _machine(report), look))
    if report["gpus"]:
        console.print(_table("gpu device name memory capability mig uuid", _gpus(report), look))
    console.print(_table("backend on proof reason", _proofs(report, "backends", "name"), look))
    console.print(_table("memory on seen reason", _proofs(report, "memory", "kind"), look))
    for finding in report["findings"]:
        is_problem = finding["level"] == "problem"
        console.print(Text.assemble(("! " if is_problem else "- ", "bold red" if is_problem else ""), finding["what"]))
        console.print(Text(f"    {finding['do']}"), style="dim")
    console.print(_foot(report))


def _machine(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    host, software, driver = report["machine"], report["software"], report["driver"]
    inside = {"container": host["container"], "VM": host["vm"], "": host["wsl"]}
    memory = _gib(host["memory_bytes"])
    memory += f", limited to {_gib(host['memory_limit_bytes'])}" if host["memory_limit_bytes"] else ""
    memlock = {-1: "unlimited", None: "?"}.get(host["memlock_bytes"]) or _gib(host["memlock_bytes"])
    build = {"cuda": f"CUDA {software['cuda']}", "hip": f"ROCm {software['hip']}", "": "CPU build"}
    kind = next((key for key in ("cuda", "hip") if software[key]), "")
    yield "system", f"{host['os']}, kernel {host['kernel']}, {host['architecture']}"
    yield "inside", ", ".join(f"{what} {name}".strip() for what, name in inside.items() if name) or "nothing known"
    yield "CPUs", f"{host['cpus']}, NUMA nodes: {host['numa_nodes'] or '?'}"
    yield "memory", f"{memory}; locked memory: {memlock}; /dev/shm: {_gib(host['shm_bytes'])}"
    yield (
        "torch",
        f"{software['torch']} ({build[kind] if report['torch']['state'] == 'ok' else report['torch']['reason']})",
    )
    others = ("python", "triton", "ray", "numpy")
    yield "with", ", ".join(f"{name} {software[name] or 'missing'}" for name in others)
    confidential = f", confidential computing {driver['confidential_computing'] or 'unknown'}"
    yield "driver", (driver["version"] or driver["reason"]) + (confidential if report["gpus"] else "")


def _gpus(report: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    for gpu in report["gpus"]:
        about = gpu["index"] or "-", gpu["device"] or "unseen", gpu["name"], _gib(gpu["memory_bytes"])
        yield *about, gpu["compute_capability"] or "?", gpu["mig"] or "-", gpu["uuid"]


def _proofs(report: dict[str, Any], what: str, key: str) -> Iterator[tuple[Any, ...]]:
    for row in report[what]:
        is_idle = row["state"] in _IDLE or (row[key].startswith("cuda") and not report["gpus"])
        style = "green" if row["state"] in _GOOD else "dim" if is_idle else "bold red"
        yield row[key], row["device"] or "-", Text(row["state"], style=style), row["reason"]


def _table(columns: str, rows: Iterable[tuple[Any, ...]], look: box.Box | None) -> Table:
    names = columns.split()
    table = Table(box=look, pad_edge=False, show_edge=False, padding=(0, 0) if look else (0, 2, 0, 0))
    for name in names if len(names) > 1 else [*names, ""]:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    return table


def _foot(report: dict[str, Any]) -> Text:
    num = sum(finding["level"] == "problem" for finding in report["findings"])
    usable = sorted({one["name"] for one in report["backends"] if one["state"] == "ok"})
    verdict = "well" if report["exit_code"] == 0 else f"{num} problem{'s' if num != 1 else ''}"
    return Text.assemble(
        (verdict, "green" if report["exit_code"] == 0 else "bold red"), f"; usable: {' '.join(usable)}"
    )


def _gib(nbytes: int | None) -> str:
    if nbytes is None:
        return "?"
    return f"{nbytes / (1 << 30):,.1f} GiB" if nbytes >= 1 << 30 else f"{nbytes / (1 << 20):,.0f} MiB"
