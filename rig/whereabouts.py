"""Where every seat was when one hung: stage, step, and the innermost call of its worker; the text of stacks/where.txt.

Seats never wait for one another: each works on its own, and the driver waits for those that have a job. Inside a seat
the worker may wait for the process in which it shrinks findings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_BLOCK = re.compile(r"^(?=Current thread |Thread )", re.MULTILINE)
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$', re.MULTILINE)
_OF_WORKER = re.compile(r"rig[/\\]worker\.py")
_OF_APART = re.compile(r"rig[/\\]apart\.py")


def where(
    stacks: Mapping[str, str | None],
    *,
    at: Mapping[str, Mapping[str, Any]],
    jobs: Mapping[str, str],
    silent: Iterable[str],
) -> str:
    """One line per seat, then who waits for whom.

    `at` is what a seat last said of itself, `jobs` what each busy seat has to do, `silent` who said so before the hang
    and not now; `stacks` as faulthandler writes them, None where not even the node answered.
    """
    lines = [_line(seat, text, at.get(seat), jobs.get(seat), seat in set(silent)) for seat, text in stacks.items()]
    busy, idle = [s for s in stacks if s in jobs], [s for s in stacks if s not in jobs]
    waits = [f"the driver waits for {', '.join(busy)}"] if busy else []
    waits += [f"{', '.join(idle)} {'wait' if len(idle) > 1 else 'waits'} for the driver"] if idle else []
    waits += [f"{s} waits for its process apart" for s, text in stacks.items() if _OF_APART.search(_block(text or ""))]
    return "\n".join([*lines, "", *waits, "no seat waits for another one", ""])


def innermost(text: str) -> str:
    """The call that a worker is in, from the last of the stacks that were taken; "" if it is in none."""
    frame = _FRAME.search(_block(text))
    return f"{frame['name']} ({frame['file'].strip('<>').rpartition('/')[2]}:{frame['line']})" if frame else ""


def _line(seat: str, text: str | None, at: Mapping[str, Any] | None, job: str | None, is_silent: bool) -> str:
    if job is None:
        return f"{seat}  idle"
    stage = f"{at.get('stage') or 'starting'} step {at.get('step', 0)}" if at else "said nothing yet"
    word = ", and says nothing now" if is_silent else ""
    call = innermost(text) if text else ""
    place = "its node does not answer" if text is None else f"in {call}" if call else "no stack of its worker"
    return f"{seat}  {job}  {stage}{word}; {place}"


def _block(text: str) -> str:
    """The stack of the thread that the worker runs in; of several dumps the last one's."""
    return next((block for block in reversed(_BLOCK.split(text)) if _OF_WORKER.search(block)), "")
