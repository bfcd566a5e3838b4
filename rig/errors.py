"""What stops a run before it can judge anything, and how near names are found for the messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UsageError(Exception):
    """Something the user has to change: one message, exit 2, no report."""


class Incomplete(Exception):
    """The cluster does not hold what the run needs: verdict INCOMPLETE, exit 4, with a report that says what is
    missing.
    """


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a mistyped name: "did you mean 'x'? known: a, b, x"; ends without a full stop."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}known: {', '.join(names) if names else 'none'}"
