"""report.json: the whole report, for other tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SUMMARY = "report.json, with a schema version, for other tools"
FILE = "report.json"


def write(report: dict[str, Any], folder: Path) -> None:
    """Write the file; the same report gives the same bytes."""
    parts = (
        f"{_text(key)}: {_lines(value) if isinstance(value, list) else _text(value)}" for key, value in report.items()
    )
    (folder / FILE).write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def _lines(items: list[Any]) -> str:
    """A list with one item per line: half the size of an indented one, and easy to search."""
    return "[\n" + ",\n".join(map(_text, items)) + "\n]" if items else "[]"


def _text(value: Any) -> str:
    return json.dumps(value, allow_nan=False)
