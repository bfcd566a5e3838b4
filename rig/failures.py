"""failures/N.yaml: one file per finding, with what it takes to show it again.

A file that can be replayed holds everything itself: the operations, the source of a file target, what is expected.
`sha256` has a digest of every other key's value, so that `read` can say what was changed since the rig wrote it.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rig.errors import UsageError
from rig.files import read_text
from rig.records import Record

VERSION = 2
_HOST_BACKENDS = ("sim", "cpu")
_BYTES_MAX = 8 << 20  # a target's source of 1 MiB, however it is escaped, and the operations
_ELSEWHERE: Record = {"expected": None, "params": None, "ops": None, "num_ops": None}
_ELSEWHERE |= {"note": "only the first finding of a kind is shrunk in an assignment"}
_KEYS: tuple[str, ...] = ("version", "rig", "run", "seed", "replay", "command", "finding", "assignment", "device")
_KEYS += ("target", "expected", "num_ops", "note", "params", "ops", "sha256")


def write(report: Mapping[str, Any], records: Sequence[Record], folder: Path) -> None:
    """Write each file that a finding of the report points to."""
    run = next(record for record in records if record["type"] == "run")
    plan = {assignment["id"]: assignment for assignment in run["plan"]}
    replays = {(r["assignment"], r["kind"], r["summary"]): r for r in records if r["type"] == "replay"}
    firsts = {key[:2] for key in replays}
    for finding in report["findings"]:
        if not finding["replay"]:
            continue
        path = folder / finding["replay"]
        path.parent.mkdir(exist_ok=True)
        replay = replays.get((finding["assignment"], finding["kind"], finding["summary"]))
        if replay is None and (finding["assignment"], finding["kind"]) in firsts:
            replay = _ELSEWHERE
        failure = _failure(finding, run, plan.get(finding["assignment"]), replay)
        path.write_text(_text(failure | {"sha256": _digests(failure)}), encoding="utf-8")


def read(path: str) -> dict[str, Any]:
    """A file as it was written; `UsageError` says why it is none, or what was changed or cut off since."""
    text = read_text(Path(path), what="file of failures/", bytes_max=_BYTES_MAX)
    try:
        failure = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date that is none
        line = getattr(getattr(error, "problem_mark", None), "line", 0) + 1
        raise UsageError(f"{path}:{line}: not valid YAML; it was edited or cut off since the rig wrote it") from None
    if not isinstance(failure, dict) or "version" not in failure:
        raise UsageError(f"{path}: found no version; expected a file that the rig wrote, as failures/1.yaml of a run")
    if failure["version"] != VERSION:
        raise UsageError(f"{path}: a file of version {failure['version']!r}; this rig reads version {VERSION}")
    for problem in _problems(failure):
        raise UsageError(f"{path}: {problem}; expected the file as the rig wrote it")
    return failure


def command(run: Record, *, only: str) -> str:
    """The command line that runs one assignment of this run again, on every seat that has it."""
    words = ["python", "-m", "rig", "run", run["config_file"] or "CONFIG.yaml"]
    for switch, value in [("--set", text) for text in run["overrides"]]:
        words += [switch, value]
    for target in run["targets"].values():
        words += ["--target", target["path"] or target["name"]]
    for backend in run["config"]["backends"]:
        words += ["--backend", backend]
    words += ["--seed", str(run["seed"]), "--only", only.rpartition("@")[0] or only]
    words += ["--ledger"] if run["config"].get("ledger") else []
    words += ["--local"] if run["transport"] == "local" else []
    return shlex.join(words)


def _failure(
    finding: Mapping[str, Any], run: Record, assignment: Record | None, replay: Record | None
) -> dict[str, Any]:
    """A file's contents but for the digests. Without operations it holds no source: it is not replayed from it."""
    target = dict(run["targets"].get(assignment["target"]) or {}) if assignment else {}
    ops = replay["ops"] if replay else None
    if ops is None:
        target.pop("source", None)
    device = None if assignment is None else "cpu" if assignment["backend"] in _HOST_BACKENDS else "cuda"
    return {
        "version": VERSION,
        "rig": (run.get("versions") or {}).get("staging-rig", ""),
        "run": run["run"],
        "seed": run["seed"],
        "replay": f"rig replay {finding['replay']}" if ops else None,
        "command": command(run, only=finding["assignment"]),
        "finding": dict(finding),
        "assignment": assignment,
        "device": device,
        "target": target or None,
        "expected": replay["expected"] if replay else None,
        "num_ops": replay["num_ops"] if replay else None,
        "note": replay["note"] if replay else "",
        "params": replay["params"] if replay else None,
        "ops": ops and [{"op": op["op"]} | op for op in ops],  # records have their keys sorted
    }


def _problems(failure: Mapping[str, Any]) -> Iterator[str]:
    """What of a file is not as it was written."""
    digests = failure.get("sha256")
    if not isinstance(digests, dict):
        yield "it ends before its sha256: it was cut off"
        return
    if missing := [key for key in _KEYS if key not in failure]:
        yield f"{', '.join(missing)} missing: it was cut off or edited"
    if unknown := [str(key) for key in failure if key not in _KEYS]:
        yield f"{', '.join(unknown)} unknown: it was edited"
    found = _digests({key: value for key, value in failure.items() if key != "sha256"})
    if changed := [key for key in _KEYS if found.get(key) != digests.get(key)]:
        yield f"the sha256 of {', '.join(changed)} does not match: it was edited or cut off"


def _digests(failure: Mapping[str, Any]) -> dict[str, str]:
    """Of each value, the hash of its `repr`: it is made of builtins, whose order YAML keeps."""
    return {key: hashlib.sha256(repr(value).encode()).hexdigest() for key, value in failure.items()}


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """YAML's dumper, with texts of several lines as they are read: a target's source."""


def _string(dumper: Any, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _string)
_Dumper.ignore_aliases = lambda self, data: True


def _text(failure: Mapping[str, Any]) -> str:
    """The file: one operation a line."""
    parts = (
        "ops:\n" + "".join(f"- {_dump(op, default_flow_style=True, width=1_000_000)}" for op in value)
        if key == "ops" and value
        else _dump({key: value}, width=110)
        for key, value in failure.items()
    )
    return "".join(parts)


def _dump(value: Mapping[str, Any], **style: Any) -> str:
    return str(yaml.dump(dict(value), Dumper=_Dumper, sort_keys=False, allow_unicode=True, **style))
