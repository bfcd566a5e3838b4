"""Reading what a user names: small UTF-8 text, or one clear message."""

from __future__ import annotations

from pathlib import Path

from rig.errors import UsageError

BYTES_MAX = 1 << 20


def read_text(path: Path, *, what: str, bytes_max: int = BYTES_MAX) -> str:
    """The text of a file of at most `bytes_max`, by default 1 MiB; `UsageError` for a missing, unreadable, larger or
    binary one.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise UsageError(f"{path}: a pipe or a device; expected a {what} in a file")  # reading one may never end
    try:
        with path.open("rb") as file:
            raw = file.read(bytes_max + 1)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; expected a {what}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{path}: cannot be read ({reason}); expected a {what}") from None
    if len(raw) > bytes_max:
        limit = f"{bytes_max >> 20} MiB"
        raise UsageError(f"{path}: larger than {limit}; expected a {what} of at most {limit}")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}:{_line(raw, error.start)}: not UTF-8 text; expected a {what}") from None
    if "\0" in text:
        raise UsageError(f"{path}:{_line(raw, raw.index(0))}: a binary file; expected a {what} in UTF-8 text")
    return text


def _line(raw: bytes, offset: int) -> int:
    return raw[:offset].count(b"\n") + 1
