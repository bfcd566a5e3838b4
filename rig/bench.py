"""A timed scenario on one seat: its bouts one after the other, each between a target and what it is held against."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from rig import registry
from rig.cause import Finding
from rig.client import Client
from rig.compare import Side, Times, alternate, ratios
from rig.drive import DeadlineError, Progress
from rig.judge import Cell, manager_for, manager_kind, raised
from rig.loading import Contender
from rig.target import MissingNameError, NeedsGpuError, Target, TargetRaisedError
from rig.timed import Bout
from rig.traits import is_device_error, is_interrupt


@dataclass(slots=True)
class Benched:
    """What the bouts came to; `skip` says why there were none, `hang` where the time was up."""

    skip: str | None = None
    hang: str | None = None
    note: str | None = None
    device_lost: bool = False
    latency: dict[str, Any] = field(default_factory=dict)
    comparison: dict[str, Any] = field(default_factory=dict)


def bench(
    cell: Cell, target: Contender, baseline: Contender | None, *, progress: Progress
) -> Generator[Finding, None, Benched]:
    """Run the scenario's bouts; yields what went wrong, which ends them."""
    told, lab = Benched(), _Lab(cell, target, baseline, progress)
    told.comparison = lab.comparison
    scenario = registry.load("scenarios", cell.scenario)
    on_gpu, own = cell.device.type == "cuda", manager_kind(target.module) is not None
    try:
        for bout in scenario.bouts(cell.params, seed=cell.seed, on_gpu=on_gpu, own=own):
            told.latency |= lab.run(bout, rounds=cell.params["rounds"])
    except NeedsGpuError as error:
        told.skip = f"needs a GPU: {error}"
    except MissingNameError as error:
        yield Finding(kind="exception", summary=str(error))
    except DeadlineError as error:
        told.hang = str(error)
    except TargetRaisedError as error:
        cause = error.__cause__ or error
        told.device_lost = is_device_error(cause)
        yield raised(cause, str(error))
    return told


class _Lab:
    """Makes clients with fresh objects for each bout, lets their sides alternate and keeps what that came to."""

    def __init__(self, cell: Cell, target: Contender, baseline: Contender | None, progress: Progress) -> None:
        self._cell, self._target, self._baseline, self._progress = cell, target, baseline, progress
        known = [one for one in (target, baseline) if one is not None]
        self.comparison: dict[str, Any] = {
            "baseline": baseline.name if baseline else None,
            "versions": {one.name: one.version for one in known},
            "ratios": {},
            "latency": {},
            "pinned_bytes": {},
        }

    def run(self, bout: Bout, *, rounds: int) -> dict[str, Any]:
        """One bout with its own objects; returns the latency of the target's side."""
        with self._clients() as clients:
            target = self._client(self._target, clients)
            makers = [_maker(bout.build, target)]
            if (rival := self._rival(bout, target, clients)) is not None:
                makers.append(rival)
            sides, pinned = [], []
            for name, make in makers:
                with _blamed(f"{bout.name} of {name}"):
                    side, nbytes = self._measured(make)
                sides.append(_Blamed(side, f"{bout.name} of {name}"))
                pinned.append(nbytes)
            times = alternate(sides, rounds=rounds, check=lambda: self._check(bout))
            self._keep(bout, times, pinned, target)
        return times[0].latency()

    def _rival(self, bout: Bout, target: Client, clients: list[Client]) -> tuple[str, Callable[[], Side]] | None:
        """The other side: a floor, the same target with another manager, or the target that is compared."""
        if bout.reference is not None:
            reference = bout.reference
            return bout.against or "", lambda: reference(target)
        if bout.rival is not None:
            return _maker(bout.build, self._client(self._target, clients, **bout.rival))
        return _maker(bout.build, self._client(self._baseline, clients)) if self._baseline is not None else None

    def _client(self, one: Contender, clients: list[Client], **keywords: Any) -> Client:
        sim = None
        if self._cell.backend == "sim":
            from staging.backends.sim import SimDevice

            sim = SimDevice(self._cell.seed, schedule="random")
        with _blamed(f"manager of {one.name}"):
            manager = manager_for(one.module, self._cell, sim, **keywords)
        clients.append(Client(Target(one.module, device=self._cell.device, manager=manager), name=one.name, sim=sim))
        return clients[-1]

    @contextmanager
    def _clients(self) -> Iterator[list[Client]]:
        """Closed at the end; where something failed already, what closing raises would only hide it."""
        clients: list[Client] = []
        try:
            yield clients
        except BaseException:
            for client in clients:
                with suppress(Exception):
                    client.close()
            raise
        for client in clients:
            with _blamed(f"close of {client.name}"):
                client.close()
        clients.clear()
        gc.collect()

    def _measured(self, make: Callable[[], Side]) -> tuple[Side, int | None]:
        """A side, warm, and the most pinned memory that torch counted while it was made and warmed up."""
        if self._cell.device.type != "cuda":
            side = make()
            side.warm_up()
            return side, None
        from rig.device import pinned_nbytes, reset_pinned_peak

        before = pinned_nbytes(peak=False)
        reset_pinned_peak()
        side = make()
        side.warm_up()
        peak = pinned_nbytes(peak=True)
        return side, None if peak is None or before is None else max(0, peak - before)

    def _keep(self, bout: Bout, times: list[Times], pinned: list[int | None], target: Client) -> None:
        nbytes = {side: n for side, n in zip(("target", "baseline"), pinned, strict=False) if n is not None}
        if target.own:
            nbytes["manager"] = target.target.manager.stats()["pinned_bytes_peak"]
        self.comparison["pinned_bytes"][bout.name] = nbytes
        if len(times) > 1:
            against = bout.against or (self._baseline.name if self._baseline else "")
            self.comparison["ratios"] |= ratios(times[0], times[1], against=against)
            self.comparison["latency"] |= times[1].latency()

    def _check(self, bout: Bout) -> None:
        self._progress.step += 1
        if self._progress.deadline_ns is not None and time.perf_counter_ns() > self._progress.deadline_ns:
            raise DeadlineError(f"the time was up in {bout.name}")


class _Blamed:
    """A side whose exceptions are its target's."""

    def __init__(self, side: Side, doing: str) -> None:
        self._side, self._doing = side, doing

    def warm_up(self) -> None:
        with _blamed(self._doing):
            self._side.warm_up()

    def round(self) -> Mapping[str, Any]:
        with _blamed(self._doing):
            return self._side.round()


def _maker(build: Callable[[Any], Side], client: Client) -> tuple[str, Callable[[], Side]]:
    def make() -> Side:
        client.become_default()
        return build(client)

    return client.name, make


@contextmanager
def _blamed(doing: str) -> Iterator[None]:
    try:
        yield
    except (NeedsGpuError, MissingNameError, TargetRaisedError, DeadlineError):
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise TargetRaisedError(doing) from error
