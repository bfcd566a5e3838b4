"""The false-alarm budget: how much correct code was judged without one finding, by long runs; it is in every report.

`rig run soak`, then `rig budget DIR`, adds a run. The entries lie in false_alarms.json beside this file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rig.errors import UsageError

CORRECT = ("staging", "model", "unfenced")  # targets that are right in every cell that a run takes
_FILE = Path(__file__).with_suffix(".json")
_PUBLISHES = ("publish", "copy_to_gpu", "publish_backed", "expose", "apply", "fused_apply")
_COUNTED = ("words", "publishes", "late_readers")


def budget() -> dict[str, Any]:
    """The sums over all runs, and the runs: date, machine, targets, words, publishes, late readers, seconds."""
    runs = json.loads(_FILE.read_text(encoding="utf-8")) if _FILE.exists() else []
    return {key: sum(run[key] for run in runs) for key in _COUNTED} | {"findings": 0, "runs": runs}


def entry(report: Mapping[str, Any]) -> dict[str, Any]:
    """What a run adds; `UsageError` unless it passed, controls and all, over correct targets alone."""
    targets = sorted({assignment["target"] for assignment in report["assignments"]})
    if report["verdict"] != "PASS" or report["findings"]:
        raise UsageError(f"the run is {report['verdict']} with {len(report['findings'])} findings; expected PASS")
    if strange := [name for name in targets if name not in CORRECT]:
        raise UsageError(f"target {strange[0]!r} is not known to be correct; expected only {', '.join(CORRECT)}")
    if not report["controls"]:
        raise UsageError("the run had no controls, so that nothing shows that it could have found anything")
    counters, environment = report["coverage"]["counters"], report["seats"][0]["environment"]
    backends = sorted({assignment["backend"] for assignment in report["assignments"]})
    if "cpu" in backends:
        raise UsageError("backend 'cpu' reads at once; expected only backends whose readers are late, as sim")
    return {
        "run": report["run"]["name"],
        "date": report["run"]["start"][:10],
        "machine": environment.get("gpu") or f"{environment.get('cpus')} CPUs",
        "seats": len(report["seats"]),
        "targets": targets,
        "backends": backends,
        "words": report["coverage"]["checked_words"],
        "publishes": sum(counters.get(verb, 0) for verb in _PUBLISHES),
        "late_readers": counters.get("reads", 0),
        "elapsed_s": report["run"]["elapsed_s"],
        "torch": environment.get("torch"),
    }


def add(report: Mapping[str, Any]) -> dict[str, Any]:
    """Add a run to the budget, in place of an earlier one of the same name and machine; returns its entry."""
    new = entry(report)
    runs = [run for run in budget()["runs"] if (run["run"], run["machine"]) != (new["run"], new["machine"])]
    _FILE.write_text(json.dumps([*runs, new], indent=1) + "\n", encoding="utf-8")
    return new
