"""Fetching a run's spools from the nodes of a cluster: small tasks pinned to each node read them piece by piece.

Import it only inside `open_cluster`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from rig.cluster_place import alive_nodes
from rig.seats import Node
from rig.spool import spools_of, temp_folder

_PIECE = 4 << 20
_ANSWER_S = 60.0  # a task's runtime environment may have to be made first


def fetch(run: str, folders: Sequence[str], *, into: Path, say: Callable[[str], None]) -> list[tuple[str, Path]]:
    """Copy every spool of `run` in a node's temp folder or in `folders` into a folder here; returns (where, copy).

    A node that does not answer is named and left out. Nodes that share a disk have the same spools, copied once.
    """
    nodes = alive_nodes()
    asked = {_on(node, names).remote(run, list(folders)): node for node in nodes}
    ready, late = ray.wait(list(asked), num_returns=len(asked), timeout=_ANSWER_S) if asked else ([], [])
    for ref in late:
        say(f"node {asked[ref].address} does not answer")
    copied: dict[str, tuple[str, Path]] = {}
    for ref in ready:
        node = asked[ref]
        try:
            for path, size in ray.get(ref, timeout=_ANSWER_S):
                name = Path(path).name
                if name not in copied:
                    _copy(node, path, size, into / name)
                    copied[name] = (f"{path} on {node.address}", into / name)
        except (RayError, GetTimeoutError) as error:
            say(f"node {node.address} could not be read: {' '.join(str(error).split())[:300]}")
    say(f"{len(copied)} spools on {len(nodes)} nodes")
    return list(copied.values())


def _copy(node: Node, there: str, size: int, here: Path) -> None:
    """A copy that has its name once it is whole."""
    draft = here.with_suffix(".part")
    try:
        with draft.open("wb") as file:
            for offset in range(0, size, _PIECE):
                file.write(ray.get(_on(node, piece).remote(there, offset), timeout=_ANSWER_S))
        draft.replace(here)
    finally:
        draft.unlink(missing_ok=True)


def _on(node: Node, task: Any) -> Any:
    return task.options(label_selector={"ray.io/node-id": node.node_id})


def _names(run: str, folders: list[str]) -> list[tuple[str, int]]:
    """The spools of a run on this node, with their sizes now."""
    places = dict.fromkeys([str(temp_folder()), *folders])
    return [(str(path), path.stat().st_size) for place in places for path in spools_of(run, Path(place))]


def _piece(path: str, offset: int) -> bytes:
    """A piece of a spool."""
    with Path(path).open("rb") as file:
        file.seek(offset)
        return file.read(_PIECE)


_remote: Any = ray.remote  # its types know no options
names = _remote(num_cpus=0, max_retries=0)(_names)
piece = _remote(num_cpus=0, max_retries=0)(_piece)
