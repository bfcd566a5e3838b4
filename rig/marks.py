"""YAML to plain values, with the line of every key and item kept for error messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from rig.errors import UsageError

Path = tuple[str | int, ...]
_NODES_MAX = 50_000  # aliases count each time they are used; a config has a few hundred values
_MERGE = "tag:yaml.org,2002:merge"


class Loader(yaml.SafeLoader):
    """PyYAML's safe loader whose node tree is walked for marks and duplicate keys before values are made of it."""


class Marks:
    """Where each value was written. A value that is absent is looked for where its nearest parent is."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._places: dict[Path, str] = {}

    def at(self, path: Path) -> str:
        """The place as "file:line", or the switch that set the value."""
        for length in range(len(path), -1, -1):
            if path[:length] in self._places:
                return self._places[path[:length]]
        return self.name

    def note(self, path: Path, place: str) -> None:
        """Say that `path`, and all below it, was written at `place`."""
        self._places = {known: at for known, at in self._places.items() if known[: len(path)] != path}
        self._places[path] = place

    def add(self, path: Path, line: int) -> None:
        """Say that `path` was written on `line` of the file."""
        self._places[path] = f"{self.name}:{line}"


def parse(text: str, *, name: str) -> tuple[Any, Marks]:
    """Values and marks of the one YAML document in `text`.

    `UsageError` with "name:line" for bad syntax, a key given twice, a reference to itself, or no content.
    """
    marks = Marks(name)
    loader = None
    try:
        loader = Loader(text)
        node = loader.get_single_node()
        if node is None:
            raise UsageError(f"{name}:1: the file is empty; expected a mapping with version, name and runs")
        for count, (path, line) in enumerate(_walk(node, (), name, ())):
            if count >= _NODES_MAX:
                raise UsageError(f"{name}:{line}: more than {_NODES_MAX} values, aliases counted; expected a config")
            marks.add(path, line)
        return loader.construct_document(node), marks
    except RecursionError:
        raise UsageError(f"{name}:1: nested too deeply; expected a config") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        if problem.startswith("but"):
            problem = f"{getattr(error, 'context', '')} {problem}"
        raise UsageError(f"{name}:{mark.line + 1 if mark else 1}: not valid YAML: {problem}") from None
    finally:
        if loader is not None:
            loader.dispose()


def _walk(node: yaml.Node, path: Path, name: str, above: tuple[int, ...]) -> Iterator[tuple[Path, int]]:
    """Each value's path and line, parents first."""
    line = node.start_mark.line + 1
    if id(node) in above:
        raise UsageError(f"{name}:{line}: a value that contains itself; expected a finite config")
    above = (*above, id(node))
    if not path:
        yield path, line
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield (*path, index), item.start_mark.line + 1
            yield from _walk(item, (*path, index), name, above)
    elif isinstance(node, yaml.MappingNode):
        _refuse_twice(node, name)
        for key, value in sorted(node.value, key=lambda pair: pair[0].tag != _MERGE):  # what is written here wins
            if key.tag == _MERGE:
                for merged in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    yield from _walk(merged, path, name, above) if path else iter(())
                continue
            here = (*path, str(getattr(key, "value", "")))
            yield here, key.start_mark.line + 1
            yield from _walk(value, here, name, above)


def _refuse_twice(node: yaml.MappingNode, name: str) -> None:
    first: dict[tuple[str, str], int] = {}
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
            line = key.start_mark.line + 1
            if (key.tag, key.value) in first:
                before = first[key.tag, key.value]
                raise UsageError(f"{name}:{line}: key {key.value!r} is given twice; the first is on line {before}")
            first[key.tag, key.value] = line
