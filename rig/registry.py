"""Plug-in folders: one file is one plug-in, and the file's stem is its public name.

A listing reads the folder and a summary reads the file's text, so neither imports a plug-in. `load` imports exactly
one.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from rig.errors import UsageError, nearest


class UnknownName(UsageError):
    """A name that is no file of its folder."""


def names(folder: str) -> list[str]:
    """The plug-ins of `rig/<folder>`, sorted; files whose name starts with "_" are none."""
    return sorted(_files(f"rig.{folder}"))


def load(folder: str, name: str) -> ModuleType:
    """Import one plug-in; `UnknownName` says which names there are."""
    if name not in names(folder):
        raise UnknownName(f"unknown {folder.removesuffix('s')} {name!r}; {nearest(name, names(folder))}")
    return importlib.import_module(f"rig.{folder}.{name}")


def summary(folder: str, name: str) -> str:
    """The plug-in's one line: its `SUMMARY`, else the first line of its docstring; read, not imported."""
    return _summary(_files(f"rig.{folder}")[name])


def variants(folder: str, name: str) -> list[str]:
    """The names a plug-in tells apart after a colon: the keys of its `FAULTS`, or the files of the folder that its
    `FAULTS_OF` names, if it has either; read, not imported."""
    constants = _constants(_files(f"rig.{folder}")[name])
    if isinstance(of := constants.get("FAULTS_OF"), ast.Constant):
        return names(str(of.value))
    value = constants.get("FAULTS")
    return (
        [str(key.value) for key in value.keys if isinstance(key, ast.Constant)] if isinstance(value, ast.Dict) else []
    )


def backends() -> dict[str, str]:
    """Name and one line of every backend of the library, which is not imported for it."""
    return {name: _summary(path) for name, path in sorted(_files("staging.backends").items())}


def _files(package: str) -> dict[str, Path]:
    """Stem and path of each plug-in file of a package; only the package's parent is imported, and not even that for a
    top-level one."""
    top, _, rest = package.partition(".")
    spec = importlib.util.find_spec(top)
    roots = spec.submodule_search_locations if spec else None
    folders = [Path(root, *rest.split(".")) for root in roots or ()]
    folders += [Path(extra) for extra in _extra(package) if Path(extra) not in folders]
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.py")) if path.stem[0] != "_"}


def _extra(package: str) -> list[str]:
    """Further folders of a package that is already imported and whose `__path__` somebody extended."""
    return [str(folder) for folder in getattr(sys.modules.get(package), "__path__", ())]


def _summary(path: Path) -> str:
    value = _constants(path).get("SUMMARY")
    if isinstance(value, ast.Constant):
        return str(value.value)
    return (ast.get_docstring(_tree(path)) or "").partition("\n")[0]


def _constants(path: Path) -> dict[str, ast.expr]:
    """The expressions that a file gives to names at its top level."""
    found: dict[str, ast.expr] = {}
    for node in _tree(path).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id: node.value for target in targets if isinstance(target, ast.Name)}
    return found


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
