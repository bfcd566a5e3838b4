"""A Ray cluster of several nodes on this machine, for one run: loopback only, token authentication, its own short temp
folder.

Each node is a raylet of its own, so seats are separate as on real machines. All processes die with this one (the kernel
sees to that on Linux), and neither processes nor files are left behind. Nothing is read from or written to ~/.ray.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rig import gpus
from rig.cluster_env import setting
from rig.cluster_sweep import sweeping
from rig.errors import UsageError

_STORE_BYTES = 80 * 1024 * 1024  # Ray refuses less than 75 MiB; payloads never travel
_CPUS_PER_NODE = 1
_PORT = re.compile(r"specified port is (\d+)")
_BASE_LENGTH_MAX = 18  # a socket path has 103 bytes on macOS, of which Ray and our folder take 85


@contextlib.contextmanager
def local_cluster(num_nodes: int) -> Iterator[str]:
    """Start `num_nodes` nodes and yield the address; GPUs of this machine all belong to the first node.

    Raises `UsageError` with what to do if Ray cannot start. Must be entered and left on the main thread.
    """
    folder = Path(tempfile.mkdtemp(prefix="rig-", dir=_short_base()))
    try:
        with sweeping(folder), setting(_environment(folder)):
            _reread_environment()
            cluster = _start(num_nodes)
            try:
                yield str(cluster.address)
            finally:
                with contextlib.suppress(Exception):  # what it leaves is swept
                    cluster.shutdown()
    finally:
        _reread_environment()


def _start(num_nodes: int) -> Any:
    """The running cluster; what went up of one that failed is taken down again."""
    from ray.cluster_utils import Cluster

    cluster: Any = Cluster()
    node: dict[str, Any] = {
        "object_store_memory": _STORE_BYTES,
        "include_log_monitor": False,
        "dashboard_agent_listen_port": 0,
    }
    if _is_loopback():
        node["node_ip_address"] = "127.0.0.1"
    num_gpus = len(gpus.visible())
    first: dict[str, Any] = {"num_gpus": num_gpus, "num_cpus": max(_CPUS_PER_NODE, num_gpus)}
    first |= {"include_dashboard": False, "dashboard_port": _free_port(), "no_monitor": True}
    try:
        cluster.add_node(wait=False, **node, **first)
        for _ in range(num_nodes - 1):
            cluster.add_node(wait=False, **node, num_cpus=_CPUS_PER_NODE, num_gpus=0)
        cluster.wait_for_nodes()
    except Exception as error:
        logs = _logs(Path(os.environ["RAY_TMPDIR"]))
        with contextlib.suppress(Exception):
            cluster.shutdown()
        raise UsageError(_advice(error, logs)) from error
    return cluster


def _short_base() -> str | None:
    """Where the temp folder goes: the usual place, or /tmp if sockets below it would have too long a path."""
    return "/tmp" if len(tempfile.gettempdir()) > _BASE_LENGTH_MAX and os.access("/tmp", os.W_OK) else None


def _environment(folder: Path) -> dict[str, str]:
    """What this process and all it starts are told; put back as it was afterwards."""
    paths = [str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH", "")]
    told = {
        "RAY_TMPDIR": str(folder),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }
    if "ray" not in sys.modules:  # read once, when ray is imported: loopback addresses, as Ray does on macOS
        told["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    return told


def _reread_environment() -> None:
    """Ray reads mode and token once, when it is imported or first needs them; make it look again."""
    if "ray" in sys.modules:
        with contextlib.suppress(ImportError, AttributeError):
            raylet: Any = importlib.import_module("ray._raylet")
            raylet.Config.initialize("")
            raylet.AuthenticationTokenLoader.instance().reset_cache()


def _is_loopback() -> bool:
    from ray._private import ray_constants

    return not ray_constants.ENABLE_RAY_CLUSTER


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _logs(folder: Path) -> str:
    """What the Ray processes of the cluster wrote to their error logs."""
    paths = sorted(folder.glob("ray/session_2*/logs/*.err"))
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in paths)


def _advice(error: Exception, logs: str) -> str:
    """One line: what failed, and what to do about it."""
    what = " ".join(str(error).split())[:200] or type(error).__name__
    store = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").exists() else _STORE_BYTES
    temp = shutil.disk_usage(tempfile.gettempdir()).free
    port = _PORT.search(logs)
    if port:
        hint = f"port {port[1]} is in use; free it, or unset the variable that names it, such as RAY_GCS_SERVER_PORT"
    elif store < _STORE_BYTES:
        hint = f"/dev/shm has {store >> 20} MiB free and each node needs {_STORE_BYTES >> 20}; enlarge it (--shm-size)"
    elif temp < _STORE_BYTES:
        hint = f"{tempfile.gettempdir()} has {temp >> 20} MiB free; make room, or set TMPDIR to another disk"
    else:
        hint = "free memory, processes and open files (ulimit -n), or use --local (no Ray), or --address of a cluster"
    return f"Ray cannot start on this machine: {hint} ({what})"
