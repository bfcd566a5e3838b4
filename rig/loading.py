"""From a target's spec to an object with upstream's names: built in, importable, or a file's shipped source."""

from __future__ import annotations

import importlib
import itertools
import linecache
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from rig import registry
from rig.traits import is_interrupt

_numbers = itertools.count()


class ImportFailedError(Exception):
    """The target could not be imported; the error is chained."""


@contextmanager
def loaded(spec: Mapping[str, Any], *, device: torch.device) -> Iterator[Any]:
    """The target of `spec` ({name, kind, module, source, path}), imported anew if it is a file.

    Raises ImportFailedError chaining whatever the import raised, unless the rig itself interrupted it.
    """
    if spec["kind"] == "builtin":
        name, _, fault = spec["name"].partition(":")
        yield _blamed(lambda: registry.load("targets", name).load(fault=fault or None, device=device))
    elif spec["kind"] == "module":
        yield _blamed(lambda: importlib.import_module(spec["module"]))
    else:
        module = _module_of(spec)
        try:
            _blamed(lambda: exec(compile(spec["source"], module.__file__ or "", "exec"), module.__dict__))
            yield module
        finally:
            sys.modules.pop(module.__name__, None)


def _module_of(spec: Mapping[str, Any]) -> ModuleType:
    """A new, empty module whose source tracebacks and Triton can find, though no such file need exist here."""
    module = ModuleType(f"rig_target_{next(_numbers)}")
    module.__file__ = filename = f"<{spec.get('path') or spec['name']}>"
    source = spec["source"]
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    sys.modules[module.__name__] = module
    return module


def _blamed(call: Any) -> Any:
    try:
        return call()
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise ImportFailedError(f"{type(error).__name__}: {error}") from error
