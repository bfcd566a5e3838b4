"""Request traces: CSV files of arrival time, prompt tokens and output tokens, one request a line."""

from __future__ import annotations

import csv
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from rig.errors import UsageError

COLUMNS = ("arrival time", "prompt tokens", "output tokens")
_NBYTES_MAX = 256 << 20
_TOKENS_MAX = 1 << 24


class Arrival(NamedTuple):
    """One request: seconds on the trace's own clock, and tokens."""

    arrival_s: float
    num_prompt: int
    num_output: int


def read_trace(path: str) -> list[Arrival]:
    """All requests, by their arrival. A first line without a time in its first column is a header.

    Times are ISO 8601 (UTC unless they say otherwise) or plain seconds. `UsageError` names file, line and column of
    what is wrong.
    """
    arrivals: list[Arrival] = []
    try:
        if Path(path).stat().st_size > _NBYTES_MAX:
            raise UsageError(f"{path}: a trace of more than {_NBYTES_MAX >> 20} MiB; cut it")
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, strict=True)
            arrivals += (
                _arrival(cells, f"{path}:{lines.line_num}")
                for cells in lines
                if cells and not (lines.line_num == 1 and _is_heading(cells))
            )
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UsageError(f"{path}: cannot be read ({reason}); expected a CSV file of {_expected()}") from None
    except csv.Error as error:
        raise UsageError(f"{path}:{lines.line_num}: not CSV: {error}; expected {_expected()}") from None
    if not arrivals:
        raise UsageError(f"{path}:1: no request in it; expected lines of {_expected()}")
    return sorted(arrivals)


def _is_heading(cells: list[str]) -> bool:
    """A time in no first place, and numbers in no other."""
    return _seconds(cells[0]) is None and not any(cell.strip().isdigit() for cell in cells)


def _arrival(cells: list[str], place: str) -> Arrival:
    if len(cells) < len(COLUMNS):
        missing = COLUMNS[len(cells)]
        raise UsageError(f"{place}: column {len(cells) + 1} ({missing}) is missing; expected {_expected()}")
    arrival_s = _seconds(cells[0])
    if arrival_s is None:
        raise UsageError(f"{place}: column 1 (arrival time): found {cells[0]!r}; expected ISO 8601 or seconds")
    num_prompt, num_output = (_count(cells, index, place) for index in (1, 2))
    return Arrival(arrival_s, num_prompt, num_output)


def _count(cells: list[str], index: int, place: str) -> int:
    text = cells[index].strip()
    if not (text.isascii() and text.isdigit()) or len(text) > 8 or int(text) > _TOKENS_MAX:
        wanted = f"a whole number from 0 to {_TOKENS_MAX}"
        raise UsageError(f"{place}: column {index + 1} ({COLUMNS[index]}): found {cells[index]!r}; expected {wanted}")
    return int(text)


def _seconds(text: str) -> float | None:
    text = text.strip()
    try:
        value = float(text)
        return value if abs(value) < 1e12 else None  # also not NaN
    except ValueError:
        pass
    try:
        when = datetime.fromisoformat(text)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _expected() -> str:
    return ", ".join(COLUMNS)
