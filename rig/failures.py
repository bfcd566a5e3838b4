"""failures/N.yaml: one file per finding, with what it takes to run its assignment again."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import yaml

from rig.records import Record


def write(report: dict[str, Any], run: Record, folder: Path) -> None:
    """Write each file that a finding of the report points to."""
    plan = {assignment["id"]: assignment for assignment in run["plan"]}
    for finding in report["findings"]:
        if not finding["replay"]:
            continue
        path = folder / finding["replay"]
        path.parent.mkdir(exist_ok=True)
        assignment = plan.get(finding["assignment"])
        text = yaml.safe_dump(_failure(finding, run, assignment), sort_keys=False, allow_unicode=True, width=110)
        path.write_text(text, encoding="utf-8")


def _failure(finding: dict[str, Any], run: Record, assignment: Record | None) -> dict[str, Any]:
    target = run["targets"].get(assignment["target"]) if assignment else None
    return {
        "version": 1,
        "run": run["run"],
        "seed": run["seed"],
        "seat": assignment["seat"] if assignment else None,
        "command": command(run, only=finding["assignment"]),
        "finding": finding,
        "assignment": assignment,
        "target": target,
    }


def command(run: Record, *, only: str) -> str:
    """The command line that runs one assignment of this run again, on every seat that has it."""
    words = ["python", "-m", "rig", "run", run["config_file"] or "CONFIG.yaml"]
    for switch, value in [("--set", text) for text in run["overrides"]]:
        words += [switch, value]
    for target in run["targets"].values():
        words += ["--target", target["path"] or target["name"]]
    for backend in run["config"]["backends"]:
        words += ["--backend", backend]
    words += ["--seed", str(run["seed"]), "--only", only.rpartition("@")[0] or only]
    words += ["--local"] if run["transport"] == "local" else []
    return shlex.join(words)
