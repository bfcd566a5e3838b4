"""From a cluster to placed actors: wait for the nodes, reserve every seat at once, start the actors in waves."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rig.cluster_actor import SeatActor
from rig.config import Expect
from rig.errors import Incomplete
from rig.seats import Node, Seat, found

WAVE = 64  # actors that start at the same time; one is about half a second of a core, on its own node
_POLL_S = 0.25
_ray: Any = ray  # some of its functions have no types


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A seat with its actor, and what the actor said of itself."""

    seat: Seat
    actor: Any
    node_id: str
    pid: int
    gpu: str = ""  # the UUID of its GPU, if it has one


def alive_nodes() -> list[Node]:
    """The alive nodes, as Ray's control store knows them now."""
    nodes = [node for node in _ray.nodes() if node["Alive"]]
    return [
        Node(
            node_id=node["NodeID"],
            address=node["NodeManagerAddress"],
            num_cpus=node["Resources"].get("CPU", 0.0),
            num_gpus=int(node["Resources"].get("GPU", 0)),
        )
        for node in nodes
    ]


def wait_for(expect: Expect, *, wait_s: float, check: Callable[[], None]) -> list[Node]:
    """The nodes of the cluster, as soon as there are at least as many as expected, or when `wait_s` is over.

    `check` is called often and raises if the run is to end.
    """
    deadline = time.monotonic() + wait_s
    while True:
        nodes = alive_nodes()
        has = found(nodes)
        if (has["cpu_nodes"] >= expect.cpu_nodes and has["gpus"] >= expect.gpus) or time.monotonic() > deadline:
            return nodes
        check()
        time.sleep(_POLL_S)


def reserve(
    seats: Sequence[Seat], nodes: Sequence[Node], *, wait_s: float, check: Callable[[], None]
) -> PlacementGroup:
    """One bundle per seat, each on the seat's node. `Incomplete` if one fits nowhere, or is not free in time."""
    bundles = _bundles(seats, nodes)
    labels = [{"ray.io/node-id": seat.node_id} for seat in seats]
    group: PlacementGroup = placement_group(bundles, strategy="PACK", bundle_label_selector=labels)
    try:
        _wait_placed(group, bundles, wait_s=wait_s, check=check)
    except BaseException:
        release(group)
        raise
    return group


def _wait_placed(
    group: PlacementGroup, bundles: Sequence[dict[str, float]], *, wait_s: float, check: Callable[[], None]
) -> None:
    deadline = time.monotonic() + wait_s
    while not group.wait(_POLL_S):
        check()
        state = (placement_group_table(group).get("stats") or {}).get("scheduling_state")
        if state == "INFEASIBLE":
            raise Incomplete(f"no node can ever hold a seat: {_demand(bundles)}; the cluster has {_offer()}")
        if time.monotonic() > deadline:
            raise Incomplete(
                f"the seats were not free within wait_s = {wait_s:g} ({state}): {_demand(bundles)}; free: {_free()}; "
                "other work holds the rest"
            )


def start(
    seats: Sequence[Seat], nodes: Sequence[Node], group: PlacementGroup, *, ready_s: float, check: Callable[[], None]
) -> list[Placed]:
    """Start one actor per bundle, in waves, and give each its seat.

    Ray decides which actor of a node has which GPU, so a node's seats are given out in the order of the UUIDs.
    """
    bundles = _bundles(seats, nodes)
    started: list[tuple[str, str, int, Any, dict[str, Any]]] = []
    for first in range(0, len(seats), WAVE):
        wave = range(first, min(first + WAVE, len(seats)))
        actors = [_actor(group, index, bundles[index]) for index in wave]
        said = gather([a.identify.remote() for a in actors], within_s=ready_s, what="start", check=check)
        started += [(w["node_id"], w["gpu"], i, a, w) for i, a, w in zip(wave, actors, said, strict=True)]
    ordered = sorted(started, key=lambda s: s[:3])
    by_node = sorted(enumerate(seats), key=lambda place: (place[1].node_id, place[0]))
    placed = [
        Placed(seat=seat, actor=actor, node_id=said["node_id"], pid=said["pid"], gpu=said["gpu"])
        for (_, seat), (*_, actor, said) in zip(by_node, ordered, strict=True)
    ]
    return sorted(placed, key=lambda p: seats.index(p.seat))


def release(group: PlacementGroup) -> None:
    """Give the bundles back; every actor in them is gone by now."""
    with contextlib.suppress(Exception):
        ray.util.remove_placement_group(group)


def gather(refs: Sequence[Any], *, within_s: float, what: str, check: Callable[[], None]) -> list[Any]:
    """The results in order.

    `Incomplete` if one is late or its process died; an exception in the process is raised as `RuntimeError` with its
    text.
    """
    deadline = time.monotonic() + within_s
    waiting = list(refs)
    while waiting:
        _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_POLL_S)
        check()
        if waiting and time.monotonic() > deadline:
            raise Incomplete(f"{len(waiting)} of {len(refs)} seats did not {what} within ready_s = {within_s:g}")
    try:
        return [ray.get(ref, timeout=within_s) for ref in refs]
    except RayTaskError as error:
        raise RuntimeError(f"a seat could not {what}: {error}") from error
    except (RayError, GetTimeoutError) as error:
        raise Incomplete(f"a seat did not {what}: {' '.join(str(error).split())[:600]}") from error


def _bundles(seats: Sequence[Seat], nodes: Sequence[Node]) -> list[dict[str, float]]:
    """One CPU for each seat where its node has any, and one GPU for a GPU seat."""
    has = {node.node_id: node.num_cpus for node in nodes}
    cpus = [{"CPU": min(1.0, has[seat.node_id])} if has[seat.node_id] else {} for seat in seats]
    return [{"GPU": 1.0} | own if seat.kind == "gpu" else own for seat, own in zip(seats, cpus, strict=True)]


def _actor(group: PlacementGroup, index: int, bundle: dict[str, float]) -> Any:
    strategy = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=index)
    return SeatActor.options(
        num_cpus=bundle.get("CPU", 0), num_gpus=bundle.get("GPU", 0), scheduling_strategy=strategy
    ).remote()


def _demand(bundles: Sequence[dict[str, float]]) -> str:
    kinds: dict[str, int] = {}
    for bundle in bundles:
        text = " + ".join(f"{amount:g} {name}" for name, amount in sorted(bundle.items()))
        kinds[text] = kinds.get(text, 0) + 1
    return "wanted " + ", ".join(f"{count} x ({text})" for text, count in kinds.items())


def _offer() -> str:
    return "; ".join(f"{n.address}: {n.num_cpus:g} CPU, {n.num_gpus} GPU" for n in alive_nodes()[:20]) or "no node"


def _free() -> str:
    free = _ray.available_resources()
    return f"{free.get('CPU', 0):g} CPU, {free.get('GPU', 0):g} GPU"
