"""From an entry of `targets` to what a worker needs to load it; nothing is imported here."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rig import registry
from rig.errors import UsageError, nearest
from rig.files import read_text

_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


def target_spec(entry: str) -> dict[str, Any]:
    """The plain dict that travels with an assignment: name, kind (builtin, module, file), module, source, path, sha256.

    A file is read here, at most 1 MiB. `UsageError` for an entry that is none of the three.
    """
    spec: dict[str, Any] = {
        "name": entry,
        "kind": "builtin",
        "module": None,
        "source": None,
        "path": None,
        "sha256": None,
    }
    if _is_path(entry):
        source = read_text(Path(entry), what="target, a Python file")
        digest = hashlib.sha256(source.encode()).hexdigest()
        return spec | {"name": short_name(entry), "kind": "file", "source": source, "path": entry, "sha256": digest}
    name, _, variant = entry.partition(":")
    if name in registry.names("targets"):
        _check_variant(name, variant)
        return spec
    if _DOTTED.fullmatch(entry):
        return spec | {"name": short_name(entry), "kind": "module", "module": entry}
    known = registry.names("targets")
    raise UsageError(
        f"unknown target {entry!r}; expected a built-in name, a dotted module or a path to a .py file; "
        f"{nearest(entry, known)}"
    )


def recorded(targets: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Targets as they are recorded: a file's with its source, so that its findings can be replayed without the file."""
    told = {name: dict(spec) for name, spec in targets.items()}
    for spec in told.values():
        spec["path"] = spec["path"] and os.path.abspath(spec["path"])  # what repeats a run may start elsewhere
    return told


def _check_variant(name: str, variant: str) -> None:
    known = registry.variants("targets", name)
    if known and variant not in known:
        raise UsageError(f"target {name} expects one of its faults, as in {name}:{known[0]}; {nearest(variant, known)}")
    if variant and not known:
        raise UsageError(f"unknown target '{name}:{variant}'; {name} takes nothing after a colon")


def short_name(entry: str) -> str:
    """The name in assignment ids: a file's stem, otherwise the entry itself."""
    return Path(entry).stem if _is_path(entry) else entry


def locate(entry: str, folder: Path) -> str:
    """A relative path is one from the working folder, or else from the config's folder."""
    beside = folder / entry
    return str(beside) if _is_path(entry) and not Path(entry).exists() and beside.exists() else entry


def _is_path(entry: str) -> bool:
    return entry.endswith(".py") or "/" in entry or "\\" in entry
