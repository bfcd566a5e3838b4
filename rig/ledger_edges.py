"""What a ledger is made of: accesses, fences, and two accesses that no edge puts in order, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

HOST, MAIN = "host", "main"
Clock = dict[str, int]
"""How much of each actor's work is known to be over: all up to that tick."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Access:
    """One access to the bytes [start, stop) by an actor, the host or a stream. `clock` is what was over for that actor
    once this access is; `tick` is its own place in there. `what` names it in a sentence."""

    what: str
    writes: bool
    actor: str
    tick: int
    clock: Clock
    start: int
    stop: int
    step: int
    tensor: str | None
    slot: int | None = None


class Token(NamedTuple):
    """A fence: what is over on its stream, and so everywhere, once it is passed."""

    stream: str
    clock: Clock
    step: int


class MissingEdge(NamedTuple):
    """`later` may run before `earlier` is over. `fence` is the first one behind `earlier`, which nobody waited for."""

    earlier: Access
    later: Access
    fence: Token | None

    @property
    def kind(self) -> str:
        """The finding's kind."""
        if self.later.what == "free":
            return "use_after_free"
        return "slot_reuse" if self.later.writes else "stale_alias"

    def __str__(self) -> str:
        first, then = self.earlier, self.later
        slot = first.slot if then.slot is None else then.slot
        into = "" if slot is None else f" {'into' if then.writes and then.what != 'free' else 'of'} slot {slot}"
        where = "" if then.actor == HOST else f" on stream {then.actor}"
        whose = "had the host waited for it" if then.actor == HOST else f"had stream {then.actor} waited for it"
        if self.fence is None:
            missing, remedy = "no fence", f"a fence on stream {first.actor} behind the {first.what} would order them"
        else:
            missing, remedy = "no wait", f"the fence of step {self.fence.step} on stream {first.actor} would order them"
        return (
            f"{missing} between the {first.what} of step {first.step} on stream {first.actor} and the {then.what} of "
            f"step {then.step}{where}{into}: {remedy}, {whose} before the {then.what}"
        )
