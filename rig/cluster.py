"""The Ray side of a run: which cluster, and a crew of one actor per seat on it.

Only this file and its neighbours `cluster_*` import ray, and this one only once the environment that Ray reads is set.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rig.cluster_env import QUIET, authentication, setting
from rig.config import Expect, SeatsConfig
from rig.seats import Node, Seat

if TYPE_CHECKING:
    from rig.cluster_crew import RayCrew


@contextlib.contextmanager
def open_cluster(address: str | None, *, local_nodes: int) -> Iterator[str]:
    """Connect to a cluster and yield what it is: "caller", "local", or its address.

    In this order: the Ray that the caller of this process already initialised, which is left running; `address`;
    RAY_ADDRESS, which a Ray job sets; a local cluster of `local_nodes` nodes, which ends with the block. Raises
    `UsageError` with what to do, or `Incomplete` if the cluster's Ray or Python is another.
    """
    if _is_initialized():
        yield "caller"
        return
    address = address or os.environ.get("RAY_ADDRESS")
    with contextlib.ExitStack() as stack:
        stack.enter_context(setting(QUIET))
        if address:
            stack.enter_context(setting(authentication()))
            where, ships_code = address, not is_job()
        else:
            from rig.cluster_local import local_cluster

            address = stack.enter_context(local_cluster(local_nodes))
            where, ships_code = "local", False
        from rig.cluster_connect import connect, disconnect

        stack.callback(disconnect)
        connect(address, ships_code=ships_code)
        yield where


def wait_for_nodes(expect: Expect, *, wait_s: float, check: Callable[[], None]) -> list[Node]:
    """The alive nodes, once they are as many as expected or `wait_s` is over; `check` raises if the run is to end."""
    from rig.cluster_place import wait_for

    return wait_for(expect, wait_s=wait_s, check=check)


@contextlib.contextmanager
def hired(
    seats: Sequence[Seat], nodes: Sequence[Node], *, config: SeatsConfig, stacks: Path, check: Callable[[], None]
) -> Iterator[RayCrew]:
    """A crew of one actor per seat, all placed and started; whatever happens, it is dismissed at the end.

    Spools go where everything of a seat was taken; after an exception in the block, such as a full disk, all stay.
    """
    from rig.cluster_crew import RayCrew
    from rig.cluster_place import release, reserve, start

    group = reserve(seats, nodes, wait_s=config.wait_s, check=check)
    try:
        crew = RayCrew(start(seats, nodes, group, ready_s=config.ready_s, check=check), stacks=stacks)
        is_well = False
        try:
            yield crew
            is_well = True
        finally:
            crew.close(keep_spools=not is_well)
    finally:
        release(group)


def _is_initialized() -> bool:
    if "ray" not in sys.modules:
        return False
    import ray

    return bool(ray.is_initialized())


def is_job() -> bool:
    """Whether this process is a Ray job's driver: then Ray ships the code as the job says."""
    return "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ
