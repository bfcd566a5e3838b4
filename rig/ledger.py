"""Happens-before over the host and the streams of one device: which two accesses to memory does no edge put in order?

Data that happened to be right prove nothing about the next run; an edge that is missing is missing every time. Pure
bookkeeping by vector clocks: whoever performs accesses and makes edges tells of them, in the order of the host's calls.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

from rig.ledger_edges import HOST, Access, Clock, MissingEdge, Token

_GRANULE_BITS = 18  # accesses are looked up by the pieces of memory that they touch
_FENCES_MAX = 64  # of a stream, remembered to say which one would have ordered two accesses
_SWEEP_MIN = 1024  # queued accesses before those that are over are looked for


class Ledger:
    """Accesses and edges of one pass. One thread of the host tells of both, each call in its place.

    `step` and `tensor` are what accesses are told of from then on. `missing` is filled as edges are found missing; the
    reader empties it. Addresses are of one unified space; an access is dropped once the host knows that it is over,
    since whatever the host starts after that is ordered behind it.
    """

    def __init__(self) -> None:
        self.step = 0
        self.tensor: str | None = None
        self.missing: list[MissingEdge] = []
        self.counts: Counter[str] = Counter()
        self._clocks: dict[str, Clock] = {HOST: {}}
        self._fences: dict[str, deque[Token]] = {}
        self._queued: dict[int, list[Access]] = {}  # by granule
        self._num_queued, self._sweep_at = 0, _SWEEP_MIN

    def restart(self) -> None:
        """All that was told so far is over and of no matter."""
        for clock in self._clocks.values():
            _join(self._clocks[HOST], clock)
        for collected in (self._queued, self._fences, self.counts, self.missing):
            collected.clear()
        self._num_queued, self._sweep_at = 0, _SWEEP_MIN

    @property
    def num_queued(self) -> int:
        """Entries for accesses that are not known to be over, or were not looked at since."""
        return self._num_queued

    # -- accesses

    def host_write(self, start: int, nbytes: int, *, what: str = "write", slot: int | None = None) -> None:
        """The host wrote there; what is queued on a stream must be known to be over."""
        self.counts["events"] += 1
        self._check(self._access(HOST, what, start, nbytes, writes=True, slot=slot))

    def free(self, start: int, nbytes: int) -> None:
        """The memory is given back; as a write, and what was queued on it is forgotten."""
        self.host_write(start, nbytes, what="free")
        self.forget(start, nbytes)

    def enqueue_read(
        self, stream: str, start: int, nbytes: int, *, what: str = "read", slot: int | None = None
    ) -> Access:
        """Device work that reads there is queued, ordered behind all that the host knows to be over."""
        return self._enqueue(stream, what, start, nbytes, writes=False, slot=slot)

    def enqueue_write(self, stream: str, start: int, nbytes: int, *, what: str = "write") -> Access:
        """Device work that writes there is queued, likewise."""
        return self._enqueue(stream, what, start, nbytes, writes=True, slot=None)

    def forget(self, start: int, nbytes: int) -> None:
        """What was queued on this memory does not matter any more: it is other memory now, or nobody's."""
        for number in _granules(start, start + nbytes):
            if number in self._queued:
                left = [a for a in self._queued[number] if a.start >= start + nbytes or start >= a.stop]
                self._queued[number] = left

    def sweep(self) -> None:
        """Drop what is over, wherever it lies, so that a stream of operations which repeats itself adds nothing."""
        host = self._clocks[HOST]
        left = {number: [a for a in queued if not self.is_over(a)] for number, queued in self._queued.items()}
        self._queued = {number: queued for number, queued in left.items() if queued}
        self._num_queued = sum(map(len, self._queued.values()))
        self._sweep_at = max(_SWEEP_MIN, 2 * self._num_queued)
        for stream, fences in self._fences.items():
            while fences and fences[0].clock.get(stream, 0) <= host.get(stream, 0):
                fences.popleft()

    # -- edges

    def settled(self, access: Access) -> None:
        """The host waited for this access of a stream."""
        self._host_learns(access.clock, "settle_edges")

    def mark(self, stream: str) -> Token:
        """All that is queued on the stream up to here."""
        return Token(stream, dict(self._clock(stream)), self.step)

    def fence(self, stream: str) -> Token:
        """As `mark`, of a fence of the target's."""
        self.counts["events"] += 1
        token = self.mark(stream)
        self._fences.setdefault(stream, deque(maxlen=_FENCES_MAX)).append(token)
        return token

    def passed(self, token: Token) -> None:
        """The host waited for a fence, or asked and was told that it is passed."""
        self._host_learns(token.clock, "fence_edges")

    def order(self, token: Token, *, stream: str) -> None:
        """Later work of `stream` waits for a fence."""
        self.counts["edges"] += 1
        self.counts["order_edges"] += 1
        _join(self._clock(stream), token.clock)

    def is_over(self, access: Access) -> bool:
        """Whether the host knows that."""
        return access.tick <= self._clocks[HOST].get(access.actor, 0)

    def _host_learns(self, clock: Clock, source: str) -> None:
        self.counts["edges"] += 1
        self.counts[source] += 1
        _join(self._clocks[HOST], clock)

    def _clock(self, stream: str) -> Clock:
        return self._clocks.setdefault(stream, {})

    # -- what is queued, and what is not ordered behind it

    def _access(
        self, actor: str, what: str, start: int, nbytes: int, *, writes: bool, slot: int | None = None
    ) -> Access:
        clock = dict(self._clocks[actor])
        return Access(
            what=what,
            writes=writes,
            actor=actor,
            tick=clock.get(actor, 0),
            clock=clock,
            start=start,
            stop=start + nbytes,
            step=self.step,
            tensor=self.tensor,
            slot=slot,
        )

    def _enqueue(self, stream: str, what: str, start: int, nbytes: int, *, writes: bool, slot: int | None) -> Access:
        self.counts["events"] += 1
        clock = self._clock(stream)
        _join(clock, self._clocks[HOST])  # a launch is an edge: the host starts it after all that it knows to be over
        clock[stream] = clock.get(stream, 0) + 1
        access = self._access(stream, what, start, nbytes, writes=writes, slot=slot)
        self._check(access)
        for number in _granules(access.start, access.stop):
            queued = self._queued.setdefault(number, [])
            if writes:  # who is ordered behind this write is so behind an earlier one of the stream, too
                queued[:] = [a for a in queued if not (a.writes and a.actor == stream and _within(a, access))]
            queued.append(access)
            self._num_queued += 1
        if self._num_queued > self._sweep_at:
            self.sweep()
        return access

    def _check(self, later: Access) -> None:
        found: dict[Access, None] = {}
        for number in _granules(later.start, later.stop):
            if number in self._queued:
                queued = self._queued[number] = [a for a in self._queued[number] if not self.is_over(a)]
                for earlier in queued:
                    ordered = earlier.tick <= later.clock.get(earlier.actor, 0)
                    if not ordered and (earlier.writes or later.writes) and _overlap(earlier, later):
                        found[earlier] = None
        self.missing += [MissingEdge(earlier, later, self._fence_behind(earlier)) for earlier in found]

    def _fence_behind(self, access: Access) -> Token | None:
        fences = self._fences.get(access.actor, ())
        return next((token for token in fences if token.clock.get(access.actor, 0) >= access.tick), None)


def _join(clock: Clock, other: Clock) -> None:
    for actor, tick in other.items():
        if tick > clock.get(actor, 0):
            clock[actor] = tick


def _overlap(one: Access, other: Access) -> bool:
    return one.start < other.stop and other.start < one.stop


def _within(inner: Access, outer: Access) -> bool:
    return outer.start <= inner.start and inner.stop <= outer.stop


def _granules(start: int, stop: int) -> Iterator[int]:
    return iter(range(start >> _GRANULE_BITS, (stop - 1 >> _GRANULE_BITS) + 1)) if start < stop else iter(())
