"""Records to reports: judge once, then every format renders the same digest."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rig import failures, registry
from rig.digest import digest
from rig.records import Record
from rig.reports import json as report_json
from rig.verdict import EXITS


def write_reports(records: Sequence[Record], folder: Path, *, formats: Sequence[str]) -> tuple[str, int]:
    """Write report.json, the failures and every format of `formats`, then print the last line; returns verdict and
    exit.

    The last line is printed whatever fails: files for which the disk is too full, or a format.
    """
    verdict, exit_code = "ERROR", EXITS["ERROR"]
    try:
        report = digest(records)
        verdict, exit_code = report["verdict"], report["exit_code"]
        try:
            report_json.write(report, folder)
            failures.write(report, records, folder)
        except OSError as error:
            say(f"rig: the report could not be written: {error}")
        for name in formats:
            if name != "json":
                _render(name, report, folder)
    finally:
        say(last_line(verdict, exit_code, folder))
    return verdict, exit_code


def last_line(verdict: str, exit_code: int, folder: Path) -> str:
    """What every run ends with, for other tools."""
    return f"RIG verdict={verdict} exit={exit_code} report={folder.absolute() / report_json.FILE}"


def _render(name: str, report: dict[str, Any], folder: Path) -> None:
    """One format; the verdict does not depend on whether it works."""
    try:
        registry.load("reports", name).write(report, folder)
    except Exception as error:
        say(f"rig: the {name} report could not be written: {type(error).__name__}: {error}")


def say(line: str) -> None:
    """Print a line; a reader that went away (`| head`) or a full disk must not change the exit."""
    try:
        print(line, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
