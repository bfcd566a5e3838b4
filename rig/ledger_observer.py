"""The ledger beside a verify pass: it hears of every call, and edges that are missing become findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rig import ops
from rig.cause import Finding
from rig.drive import Observer, Performed, StopDriveError
from rig.ledger import Ledger
from rig.ledger_edges import MissingEdge
from rig.ledger_readers import LedgerReaders
from rig.readers import Readers
from rig.target import Target

if TYPE_CHECKING:
    from staging.backend import Backend

Key = tuple[str, str]
_ALWAYS = ("events", "edges", "settle_edges", "fence_edges")  # counts that say something at zero, too


class Watch:
    """One pass under a ledger: wrap its readers, then the backend of our library if there is one, then its observer.

    `begin` comes last, before anything is performed.
    """

    def __init__(self, readers: Readers, *, device: Any) -> None:
        self.ledger = Ledger()
        self._target: Target | None = None
        self.readers = LedgerReaders(readers, self.ledger, is_ours=self._tells, device=device)

    def backend(self, backend: Backend) -> Backend:
        """The backend, which tells the ledger from now on."""
        from rig.ledger_backend import watched

        return watched(backend, self.ledger, self.readers)

    def begin(self, target: Target) -> None:
        """`target` is ready: what its backend did to prove itself is over."""
        self._target = target
        self.ledger.restart()

    def observer(self, observer: Observer) -> LedgerObserver:
        """Whatever `observer` does, and the ledger's findings."""
        return LedgerObserver(observer, ledger=self.ledger, readers=self.readers)

    def coverage(self) -> dict[str, int]:
        """What the ledger heard: accesses and fences (`ledger_events`), edges by their source, edges that were missing,
        and publishes of a foreign target whose memory cannot be looked at (`ledger_unseen`)."""
        counts = self.ledger.counts
        return {f"ledger_{key}": counts[key] for key in sorted({*_ALWAYS, *(k for k, n in counts.items() if n)})}

    def _tells(self, name: str | None) -> bool:
        """Whether an object's writes are told of, or are work of the stream and no writes of the host at all."""
        target = self._target
        assert target is not None
        return target.stream_ordered or (target.own if name is None else target.is_ours(name))


class LedgerObserver:
    """Tells the ledger which step and tensor calls are about.

    A missing edge is reported once its reader was judged, and not at all where the reader's words showed the same
    already: each kind once for a tensor.
    """

    def __init__(self, observer: Observer, *, ledger: Ledger, readers: LedgerReaders) -> None:
        self._observer, self._ledger, self._readers = observer, ledger, readers
        self._reported: set[Key] = set()
        self._waiting: dict[Key, MissingEdge] = {}

    def before(self, op: ops.Op) -> None:
        self._about(op)
        self._observer.before(op)

    def after(self, done: Performed) -> Iterator[Finding]:
        if isinstance(done.op, ops.Step):
            self._ledger.step = done.op.number
        elif isinstance(done.op, ops.Make | ops.Drop):
            self._readers.made_anew(done.op.name)
        yield from self._relay(self._observer.after(done))

    def refused(self, op: ops.Op, error: BaseException) -> None:
        self._observer.refused(op, error)

    def read(self, op: ops.Read) -> Iterator[Finding]:
        self._about(op)
        yield from self._relay(self._observer.read(op))

    def settle(self, until: int | None) -> Iterator[Finding]:
        yield from self._relay(self._observer.settle(until))
        yield from self._judged(until)
        if until is None:  # nothing is queued, and what is kept now would look like a leak of the target
            self._readers.see_frees()
            self._ledger.sweep()

    def _about(self, op: ops.Op) -> None:
        self._ledger.tensor = getattr(op, "name", None)  # None: several at once

    def _relay(self, findings: Iterable[Finding]) -> Iterator[Finding]:
        try:
            for finding in findings:
                self._reported.add(_key(finding.kind, finding.tensor))
                yield finding
        except StopDriveError:
            self._collect()
            yield from self._judged(None)
            raise
        self._collect()

    def _collect(self) -> None:
        for edge in self._ledger.missing:
            self._ledger.counts["missing"] += 1
            self._waiting.setdefault(_key(edge.kind, edge.earlier.tensor), edge)
        self._ledger.missing.clear()

    def _judged(self, until: int | None) -> Iterator[Finding]:
        for key, edge in list(self._waiting.items()):
            if until is None or edge.earlier.step <= until:
                del self._waiting[key]
                if key not in self._reported:
                    self._reported.add(key)
                    yield finding_of(edge)


def finding_of(edge: MissingEdge) -> Finding:
    """A missing edge as a finding: both accesses, and what would have ordered them."""
    later, tensor = edge.later, edge.earlier.tensor
    by = "" if later.what == "free" or later.tensor in (tensor, None) else f", by `{later.tensor}`"
    found = Finding(kind=edge.kind, tensor=tensor, summary=f"ledger: `{tensor}`{by}: {edge}")
    return replace(found, overwriter={"step": later.step, "slot": edge.earlier.slot}) if later.writes else found


def _key(kind: str, tensor: str | None) -> Key:
    """Tensors made anew are named NAME#STEP and count as one."""
    return kind, (tensor or "").partition("#")[0]
