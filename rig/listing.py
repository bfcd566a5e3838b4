"""What there is: plug-in folders and presets as lines of text; nothing is imported for it."""

from __future__ import annotations

from collections.abc import Iterator

from rig import presets, registry
from rig.errors import UsageError, nearest

KINDS = ("scenarios", "targets", "backends", "reports", "incidents", "presets")


def listing(what: str | None = None) -> Iterator[str]:
    """One line per name with its summary; all kinds, or one of them. `UsageError` for an unknown kind."""
    if what is not None and what not in KINDS:
        raise UsageError(f"nothing to list called {what!r}; {nearest(what, KINDS)}")
    for kind in KINDS if what is None else (what,):
        if what is None:
            yield f"{kind}:"
        entries = _entries(kind)
        width = max(map(len, entries), default=0)
        yield from (f"  {name:<{width}}  {summary}".rstrip() for name, summary in entries.items())


def _entries(kind: str) -> dict[str, str]:
    if kind == "backends":
        return {"auto": "cuda_uva on a GPU seat, sim on a CPU seat"} | registry.backends()
    if kind == "presets":
        return {name: presets.summary(path) for name, path in sorted(presets.presets().items())}
    return {name: registry.summary(kind, name) for name in registry.names(kind)}
