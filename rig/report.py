"""Records to reports: judge once, then every format renders the same digest."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rig import failures, registry
from rig.digest import digest
from rig.records import Record
from rig.reports import json as report_json


def write_reports(records: Sequence[Record], folder: Path, *, formats: Sequence[str]) -> tuple[str, int]:
    """Write report.json, the failures and every format of `formats`, then print the last line; returns verdict and
    exit.

    The last line is printed even if the disk is too full for the files.
    """
    report = digest(records)
    run = next(record for record in records if record["type"] == "run")
    path = folder.absolute() / report_json.FILE
    try:
        report_json.write(report, folder)
        failures.write(report, run, folder)
        for name in formats:
            if name != "json":
                registry.load("reports", name).write(report, folder)
    except OSError as error:
        _say(f"rig: the report could not be written: {error}")
    _say(f"RIG verdict={report['verdict']} exit={report['exit_code']} report={path}")
    return report["verdict"], report["exit_code"]


def _say(line: str) -> None:
    """Print a line; a reader that went away (`| head`) must not change the exit."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
