"""`--set a.b=c` and the switches that replace a config's value, applied to plain data before it is validated."""

from __future__ import annotations

from typing import Any

import yaml

from rig.errors import UsageError, nearest
from rig.marks import Marks, Path

_KEYS_MAX = 20


def apply(data: dict[str, Any], marks: Marks, setting: str) -> None:
    """Set one value in place; its type is YAML's, list items are addressed by index ("runs.0.params.num_steps=10")."""
    where, equals, text = setting.partition("=")
    place = f"--set {setting}"
    keys = where.split(".")
    if not equals or not all(keys) or len(keys) > _KEYS_MAX:
        raise UsageError(f"{place}: expected path=value, as in runs.0.params.num_steps=10")
    try:
        value = yaml.safe_load(text)
    except RecursionError:
        raise UsageError(f"--set {where}: the value is nested too deeply") from None
    except yaml.YAMLError:
        raise UsageError(f"{place}: the value is not valid YAML; quote it") from None
    holder, path = _descend(data, keys[:-1], place)
    key = _key(holder, keys[-1], place, path)
    holder[key] = value
    marks.note((*path, key), place)


def replace(data: dict[str, Any], marks: Marks, *, key: str, switch: str, value: Any) -> None:
    """Set a top-level value; each item of a list carries the switch that gave it."""
    data[key] = value
    marks.note((key,), f"{switch} {value}")
    if isinstance(value, list):
        for index, item in enumerate(value):
            marks.note((key, index), f"{switch} {item}")


def _descend(data: Any, keys: list[str], place: str) -> tuple[Any, Path]:
    holder = data
    path: Path = ()
    for text in keys:
        key = _key(holder, text, place, path)
        holder = holder.setdefault(key, {}) if isinstance(holder, dict) else holder[key]
        path = (*path, key)
    return holder, path


def _key(holder: Any, text: str, place: str, path: Path) -> str | int:
    at = ".".join(map(str, path)) or "the config"
    if isinstance(holder, dict):
        return text
    if not isinstance(holder, list):
        raise UsageError(f"{place}: {at} is {holder!r}, which holds no {text!r}; expected the path of a value")
    if not text.isdigit() or int(text) >= len(holder):
        raise UsageError(f"{place}: {at} has {len(holder)} items; {nearest(text, map(str, range(len(holder))))}")
    return int(text)
