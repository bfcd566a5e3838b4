"""Seats: where one actor runs, numbered from what a cluster says of its nodes; pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rig.config import RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One GPU, or the CPUs of one node."""

    id: str
    kind: str  # gpu | cpu
    node_id: str = ""
    address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What a cluster says of one alive node."""

    node_id: str
    address: str
    num_cpus: float
    num_gpus: int


def number_seats(nodes: Iterable[Node], *, kind: str) -> tuple[Seat, ...]:
    """The seats of a cluster as s0, s1, ... by node address, then node id.

    `gpu` is one per GPU, `cpu` one per node with CPUs, `auto` one per GPU if there is any, else one per node with CPUs.
    The seats of one node get its GPUs in the order of their UUIDs, once the actors have named them.
    """
    ordered = sorted(nodes, key=lambda node: (_address_key(node.address), node.node_id))
    if kind == "auto":
        kind = "gpu" if any(node.num_gpus for node in ordered) else "cpu"
    if kind == "gpu":
        places = [node for node in ordered for _ in range(node.num_gpus)]
    else:
        places = [node for node in ordered if node.num_cpus > 0]
    return tuple(
        Seat(id=f"s{number}", kind=kind, node_id=node.node_id, address=node.address)
        for number, node in enumerate(places)
    )


def found(nodes: Iterable[Node]) -> dict[str, int]:
    """What there is of the things that `expect` counts: nodes with CPUs, and GPUs."""
    nodes = list(nodes)
    return {"cpu_nodes": sum(node.num_cpus > 0 for node in nodes), "gpus": sum(node.num_gpus for node in nodes)}


def expected_seats(config: RunConfig) -> tuple[Seat, ...]:
    """The seats of a dry run: those of the smallest cluster that `expect` allows, and at least one."""
    expect = config.seats.expect
    num_gpus = expect.gpus or (1 if config.seats.kind == "gpu" else 0)
    nodes = [
        Node(node_id=f"{number:06}", address="", num_cpus=1, num_gpus=0 if number else num_gpus)
        for number in range(max(1, expect.cpu_nodes))
    ]
    return number_seats(nodes, kind=config.seats.kind)


def _address_key(address: str) -> tuple[tuple[int, int, str], ...]:
    """Addresses in the order people count: 10.0.0.9 before 10.0.0.10."""
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in address.split("."))
