"""What is wrong with a config: pydantic's errors and unknown names, each as "place: path: found; expected"."""

from __future__ import annotations

import itertools
import math
import typing
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from rig import problems_timed, registry
from rig.errors import UsageError, nearest
from rig.marks import Marks, Path
from rig.sources import short_name, target_spec

if TYPE_CHECKING:
    from rig.config import RunConfig, RunEntry

Problem = tuple[Path, str]
CELLS_MAX = 10_000

_EXPECTED = {
    "int_type": "an integer",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "finite_number": "a finite number",
    "string_pattern_mismatch": "at most 64 letters, digits, dots, underscores and hyphens, a letter or digit first",
}
_BOUNDS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}


def message(problems: list[Problem], marks: Marks) -> str:
    """One message: the first problem in full, and how many follow."""
    path, text = problems[0]
    where = f"{'.'.join(map(str, path))}: " if path else ""
    more = len(problems) - 1
    return f"{marks.at(path)}: {where}{text}" + (f" (and {more} more problem{'s' if more > 1 else ''})" if more else "")


def of_model(error: ValidationError, marks: Marks, model: type[BaseModel]) -> str:
    """The message of a failed validation; an unknown key comes first, since it often explains a missing one."""
    errors = sorted(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    return message([_problem(dict(e), model) for e in errors], marks)


def shown(value: Any) -> str:
    """A value in a message: short, lists and mappings by what they are."""
    if isinstance(value, Mapping):
        return f"a mapping with {len(value)} keys"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)} items"
    if value is None:
        return "nothing (null)"
    text = repr(value)
    return f"{type(value).__name__} {text}" if len(text) <= 60 else f"{type(value).__name__} {text[:57]}..."


def of_names(config: RunConfig) -> list[Problem]:
    """Everything that the types cannot say: unknown names, parameters out of range, too many cells, two of one name."""
    return [
        *_unknown(("backends",), config.backends, ["auto", *registry.backends()], "backend"),
        *_unknown(("reports",), config.reports, registry.names("reports"), "report"),
        *_targets(config),
        *(problem for index, entry in enumerate(config.runs) for problem in _entry(("runs", index), entry)),
        *(_cells(config) or _twins(config)),
    ]


def _problem(error: dict[str, Any], model: type[BaseModel]) -> Problem:
    path: Path = tuple(error["loc"])
    kind, found, context = error["type"], error["input"], error.get("ctx", {})
    if path and path[-1] == "[key]":
        return path[:-2], f"found the key {shown(found)}; expected a string as key"
    if kind == "extra_forbidden":
        return path, f"unknown key {path[-1]!r}; {nearest(str(path[-1]), _keys(model, path[:-1]))}"
    if kind == "missing":
        return path[:-1], f"missing key {path[-1]!r}; expected it here"
    if kind == "literal_error":
        return (
            path,
            f"found {shown(found)}; expected {context['expected']}; {_close(found, context['expected'])}".rstrip("; "),
        )
    if kind in _BOUNDS:
        words, key = _BOUNDS[kind]
        return path, f"found {shown(found)}; expected {words} {context[key]:g}"
    if kind == "too_short":
        return path, f"found {shown(found)}; expected at least {context['min_length']}"
    if kind == "too_long":
        return path, f"found {shown(found)}; expected at most {context['max_length']} in this version"
    return path, f"found {shown(found)}; expected {_EXPECTED.get(kind) or error['msg'].removeprefix('Value error, ')}"


def _close(found: Any, expected: str) -> str:
    hint = nearest(str(found), [word.strip("' ") for word in expected.replace(" or ", ",").split(",")])
    return hint.partition("?")[0] + "?" if hint.startswith("did") else ""


def _keys(model: Any, path: Path) -> list[str]:
    """The keys that the model knows at `path`."""
    for part in path:
        if isinstance(part, str) and isinstance(model, type) and issubclass(model, BaseModel):
            model = model.model_fields[part].annotation
        else:
            model = next(iter(typing.get_args(model)), None)
    return list(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []


def _unknown(path: Path, given: tuple[str, ...], known: list[str], what: str) -> Iterator[Problem]:
    for index, name in enumerate(given):
        if name not in known:
            yield (*path, index), f"unknown {what} {name!r}; {nearest(name, known)}"
        elif name in given[:index]:
            yield (*path, index), f"{what} {name!r} is listed twice; expected each once"


def _targets(config: RunConfig) -> Iterator[Problem]:
    seen: dict[str, str] = {}
    for path, entry in _named_targets(config):
        try:
            name = target_spec(entry)["name"]
        except UsageError as error:
            yield path, str(error)
            continue
        if name in seen and (path[0] == "targets" or seen[name] != entry):
            yield path, f"{entry!r} and {seen[name]!r} are both called {name!r} in reports; rename one"
        seen[name] = entry
        if short_name(entry) != entry and name in registry.names("targets"):
            yield path, f"{entry!r} would be called {name!r}, a built-in target; rename the file"


def _named_targets(config: RunConfig) -> Iterator[tuple[Path, str]]:
    """Where each target is named: in `targets`, where each stands once, or in the `compare` of a run."""
    for index, entry in enumerate(config.targets):
        yield ("targets", index), entry
    for index, run in enumerate(config.runs):
        if run.compare is not None:
            yield ("runs", index, "compare"), run.compare


def _entry(path: Path, entry: RunEntry) -> Iterator[Problem]:
    try:
        scenario = registry.load("scenarios", entry.scenario)
    except registry.UnknownName as error:
        yield (*path, "scenario"), str(error)
        return
    params = scenario.PARAMS
    given: list[tuple[Path, str, Any]] = [(("params", key), key, value) for key, value in entry.params.items()]
    given += [(("sweep", key, i), key, v) for key, values in entry.sweep.items() for i, v in enumerate(values)]
    for where, key, value in given:
        if key not in params:
            yield (*path, *where[:2]), f"unknown parameter {key!r} of {entry.scenario}; {nearest(key, params)}"
        elif text := params[key].problem(value) or _said_by(scenario, key, value):
            yield (*path, *where), text
        if key in entry.sweep and where[0] == "params":
            yield (*path, *where), f"{key!r} is in params and in sweep; expected it in one of them"
    for key, values in entry.sweep.items():
        if len({repr(value) for value in values}) < len(values):
            yield (*path, "sweep", key), f"a value of {key!r} is listed twice; expected each once"
    if (hasattr(scenario, "SEARCH") or hasattr(scenario, "PROVES")) and entry.mode != "verify":
        yield (*path, "mode"), f"found {entry.mode!r}; expected 'verify': {entry.scenario} times nothing"
    yield from problems_timed.of_entry(path, entry, getattr(scenario, "CASES", None))


def _said_by(scenario: Any, key: str, value: Any) -> str | None:
    """What a scenario itself finds wrong with a parameter, if it looks."""
    look = getattr(scenario, "problem", None)
    text: str | None = look(key, value) if look is not None else None
    return text


def _cells(config: RunConfig) -> list[Problem]:
    per_run = [math.prod(len(values) for values in entry.sweep.values()) for entry in config.runs]
    cells = sum(per_run) * len(config.targets) * len(config.backends)
    if cells > CELLS_MAX:
        widest = max(range(len(per_run)), key=per_run.__getitem__)
        text = f"{cells} cells per seat in all; expected at most {CELLS_MAX}: sweep fewer values"
        return [(("runs", widest, "sweep"), text)]
    return []


def _twins(config: RunConfig) -> list[Problem]:
    """Entries that plan a cell of an earlier one; called for at most CELLS_MAX cells."""
    found: dict[int, Problem] = {}
    first: dict[str, int] = {}
    for index, entry in enumerate(config.runs):
        for values in itertools.product(*entry.sweep.values()):
            given = entry.params | dict(zip(entry.sweep, values, strict=True))
            about = (entry.scenario, entry.compare, entry.beyond_contract)
            cell = f"{about} {sorted((key, repr(v)) for key, v in given.items())}"
            if (before := first.setdefault(cell, index)) != index:
                text = f"plans a cell that runs.{before} plans too; give one of them another parameter value"
                found.setdefault(index, (("runs", index), text))
    return list(found.values())
