"""From a target's spec to an object with upstream's names: built in, importable, or a file's shipped source."""

from __future__ import annotations

import hashlib
import importlib
import itertools
import linecache
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from rig import registry
from rig.traits import is_interrupt

_numbers = itertools.count()


class ImportFailedError(Exception):
    """The target `name` could not be imported; the error is chained."""

    def __init__(self, text: str, *, name: str) -> None:
        super().__init__(text)
        self.name = name


@contextmanager
def loaded(spec: Mapping[str, Any], *, device: torch.device) -> Iterator[Any]:
    """The target of `spec` ({name, kind, module, source, path}), imported anew if it is a file.

    Raises ImportFailedError chaining whatever the import raised, unless the rig itself interrupted it.
    """
    if spec["kind"] == "builtin":
        name, _, fault = spec["name"].partition(":")
        yield _blamed(spec, lambda: registry.load("targets", name).load(fault=fault or None, device=device))
    elif spec["kind"] == "module":
        yield _blamed(spec, lambda: importlib.import_module(spec["module"]))
    else:
        module = _module_of(spec)
        try:
            _blamed(spec, lambda: exec(compile(spec["source"], module.__file__ or "", "exec"), module.__dict__))
            yield module
        finally:
            sys.modules.pop(module.__name__, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A loaded target, with the name and version that reports show."""

    name: str
    module: Any
    version: str


@contextmanager
def contenders(target: Mapping[str, Any], *, device: torch.device) -> Iterator[list[Contender]]:
    """The target of a spec and, if it has one, its baseline, loaded; raises ImportFailedError."""
    specs = [target, *([target["baseline"]] if target.get("baseline") else [])]
    with ExitStack() as stack:
        modules = [stack.enter_context(loaded(spec, device=device)) for spec in specs]
        pairs = zip(specs, modules, strict=True)
        yield [Contender(name=spec["name"], module=module, version=version_of(spec, module)) for spec, module in pairs]


def version_of(spec: Mapping[str, Any], module: Any) -> str:
    """What reports call a target's version: that of its installed package, else digits of its source's hash."""
    if spec["kind"] == "file":
        return f"sha256 {hashlib.sha256(spec['source'].encode()).hexdigest()[:12]}"
    package = (spec["module"] or spec["name"].partition(":")[0]).partition(".")[0]
    try:
        return version("staging-rig" if package in ("staging", "faulty") else package)
    except PackageNotFoundError:
        file = getattr(module, "__file__", None)
        sources = sorted(Path(file).parent.rglob("*.py")) if file and package == "staging" else []
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
        return f"source {digest[:12]}" if sources else str(getattr(module, "__version__", ""))


def _module_of(spec: Mapping[str, Any]) -> ModuleType:
    """A new, empty module whose source tracebacks and Triton can find, though no such file need exist here."""
    module = ModuleType(f"rig_target_{next(_numbers)}")
    module.__file__ = filename = f"<{spec.get('path') or spec['name']}>"
    source = spec["source"]
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    sys.modules[module.__name__] = module
    return module


def _blamed(spec: Mapping[str, Any], call: Any) -> Any:
    try:
        return call()
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise ImportFailedError(f"{type(error).__name__}: {error}", name=spec["name"]) from error
