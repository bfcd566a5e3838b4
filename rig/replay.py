"""`rig replay FILE`: the operations of a finding performed again, in this process, as often as asked.

The file holds the target's source as it was; a replay runs it, as the run did.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rig import failures, gpus
from rig.cause import Finding
from rig.dispatch import GRACE_S
from rig.drive import Progress
from rig.errors import UsageError
from rig.interrupts import Interrupts
from rig.judge import Cell, Result, device_of
from rig.loading import ImportFailedError
from rig.local import Deadline, Watchdog
from rig.minimum import is_like, once
from rig.ops import Op, from_dict
from rig.sources import target_spec
from rig.traits import one_line
from rig.worker import Worker

EXIT_FIXED, EXIT_FOUND, EXIT_UNCLEAR, EXIT_HANG = 0, 1, 4, 5
Say = Callable[[str], None]


def replay(path: str, *, times: int, target: str | None = None, say: Say) -> int:
    """Perform a file's operations `times` times, against its own target or another one, and say what was found.

    Returns 1 if the finding was there every time, 0 if nothing was wrong in any try, 5 for a hang, 4 for anything else:
    there only sometimes, other findings, or no such device here. `UsageError` for a file that is not as the rig wrote
    it or has no operations, and for a target that cannot be imported. Call it from the main thread.
    """
    failure = failures.read(path)
    ops, spec = operations(failure, path), target_spec(target) if target else failure["target"]
    for line in _head(failure, ops):
        say(line)
    backend = failure["assignment"]["backend"]
    if failure["device"] == "cuda" and not gpus.visible():
        say(f"not replayed: backend {backend} needs a GPU, and this machine has none")
        return EXIT_UNCLEAR
    device = "cuda:0" if failure["device"] == "cuda" else "cpu"
    worker = Worker(seat=failure["assignment"]["seat"], device=device, seed=failure["seed"])  # prepares this process
    try:
        if reason := worker.unsuited(backend, spec):
            say(f"not replayed: {reason}")
            return EXIT_UNCLEAR
        return _tries(failure, spec, ops, times=times, say=say)
    finally:
        worker.close()


def show(path: str, *, say: Say) -> int:
    """Say a file's operations, one a line, and perform nothing."""
    for op in operations(failures.read(path), path):
        say(line_of(op))
    return 0


def operations(failure: Mapping[str, Any], path: str) -> tuple[Op, ...]:
    """The operations of a file; `UsageError` if it has none, or one that this rig does not know."""
    if not failure["ops"]:
        note = f" ({failure['note']})" if failure["note"] else ""
        raise UsageError(f"{path}: no operations to replay{note}; run its assignment again: {failure['command']}")
    try:
        return tuple(map(from_dict, failure["ops"]))
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path}: operations of staging-rig {failure['rig']} that are unknown here: {error}") from None


def line_of(op: Op) -> str:
    """An operation as one line: its verb, the object's name, and what is not at its default."""
    told = op.to_dict()
    head = [told.pop("op"), *([told.pop("name")] if "name" in told else [])]
    return "  " + " ".join([*head, *(f"{key}={_shown(value)}" for key, value in told.items())])


def _tries(failure: Mapping[str, Any], spec: Mapping[str, Any], ops: tuple[Op, ...], *, times: int, say: Say) -> int:
    num_found = num_clean = 0
    for number in range(1, times + 1):
        found, result = _try(failure, spec, ops)
        if result.skip is not None or result.hang is not None:
            say(f"try {number}: {result.skip or result.hang}")
            return EXIT_UNCLEAR if result.hang is None else EXIT_HANG
        expected = failure["expected"]
        hits = [f for f in found if is_like(f, kind=expected["kind"], tensor=expected["tensor"])]
        is_clean = not found and result.note is None  # a note says what was not looked at
        num_found, num_clean = num_found + bool(hits), num_clean + is_clean
        told = "; ".join(f"{f.kind}: {one_line(f.summary)}" for f in hits[:1] or found)
        say(f"try {number}: {told or result.note or 'nothing wrong'}")
        if result.device_lost:
            say("the device was lost: no further try in this process")
            times = number
            break
    say(f"reproduced {num_found} of {times}")
    return EXIT_FOUND if num_found == times else EXIT_FIXED if num_clean == times else EXIT_UNCLEAR


def _head(failure: Mapping[str, Any], ops: tuple[Op, ...]) -> Iterator[str]:
    expected, counts = failure["expected"], failure["num_ops"]
    yield str(failure["finding"]["assignment"])
    yield f"expected: {expected['kind']}: {expected['summary']}"
    note = f" ({failure['note']})" if failure["note"] else ""
    yield f"{counts['after']} of {counts['before']} operations{note}:"
    yield from map(line_of, ops)
    if (here := _own_version()) != failure["rig"]:
        yield f"written by staging-rig {failure['rig'] or 'of no known version'}, replayed by {here}"


def _try(failure: Mapping[str, Any], spec: Mapping[str, Any], ops: tuple[Op, ...]) -> tuple[list[Finding], Result]:
    """One fresh pass under a watchdog; a pass that does not end becomes a result that says so."""
    asked = failure["assignment"]
    cell = Cell(
        scenario=asked["scenario"],
        params=failure["params"],
        backend=asked["backend"],
        device=device_of(asked["backend"], "cuda:0"),
        seed=asked["seed"],
        seat=asked["seat"],
        ops=ops,
        ledger=asked.get("ledger", False),
    )
    overdue = f"no end within timeout_s = {asked['timeout_s']:g}"
    is_main = threading.current_thread() is threading.main_thread()
    interrupts = Interrupts()
    interrupts.listen()
    try:
        watchdog = Watchdog(asked["timeout_s"] + GRACE_S, _stacks, on_stuck=_give_up, enabled=is_main)
        with interrupts.raising(), watchdog:
            return once(cell, spec, progress=Progress())
    except Deadline:
        return [], Result(hang=overdue)
    except ImportFailedError as error:
        raise UsageError(f"target {error.name} cannot be imported: {error}; nothing was replayed") from None
    finally:
        interrupts.restore()


def _stacks() -> None:
    faulthandler.dump_traceback(file=sys.__stderr__ or 2, all_threads=True)


def _give_up() -> None:
    """The main thread is stuck in a call that never returns."""
    print("no end, and no way to interrupt it", flush=True)
    os._exit(EXIT_HANG)


def _own_version() -> str:
    try:
        return version("staging-rig")
    except PackageNotFoundError:
        return ""


def _shown(value: Any) -> str:
    """A value as it is; sizes as 16x1031, names as a,b."""
    if not isinstance(value, list):
        return str(value)
    return ("x" if all(isinstance(item, int) for item in value) else ",").join(map(str, value))
