"""The environment that Ray sees, set explicitly and put back afterwards."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
}


@contextlib.contextmanager
def setting(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables inside a with-block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def authentication() -> dict[str, str]:
    """The mode for a cluster somebody else started, said explicitly: token wherever a token can be found.

    A head started without a mode turns tokens on by itself once a token file exists, and a client without a mode does
    not send one; so the mode is never left open.
    """
    mode = os.environ.get("RAY_AUTH_MODE")
    return {"RAY_AUTH_MODE": mode or ("token" if token() else "disabled")}


def token() -> str:
    """The token Ray would use, or an empty string: RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH, then ~/.ray/auth_token."""
    if os.environ.get("RAY_AUTH_TOKEN"):
        return os.environ["RAY_AUTH_TOKEN"]
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8").strip()
    return ""
