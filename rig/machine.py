"""What can be told of this machine by looking: system, memory, limits, and versions without an import of them."""

from __future__ import annotations

import os
import platform
import resource
import shutil
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

MEMORY_KINDS = ("pinned", "registered", "unpinned")  # in the order to try them: the last may hang, or break CUDA
_PACKAGES = ("torch", "numpy", "triton", "ray")
_CONTAINERS = ("docker", "kubepods", "containerd", "lxc", "podman")
T = TypeVar("T")


def machine(root: Path = Path("/")) -> dict[str, Any]:
    """System, CPUs, memory, limits, and hints at what it runs in; None where that cannot be told.

    `root` is where the system's files are looked for.
    """
    release = _read(root / "proc/sys/kernel/osrelease") or platform.release()
    total, free = _told(lambda: shutil.disk_usage(root / "dev/shm")[::2]) or (None, None)
    return {
        "os": _os_name(root),
        "kernel": release,
        "architecture": platform.machine(),
        "cpus": _told(lambda: len(os.sched_getaffinity(0))) or os.cpu_count(),
        "memory_bytes": _told(lambda: os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")),
        "memory_limit_bytes": _whole(_read(root / "sys/fs/cgroup/memory.max")),
        "memlock_bytes": _memlock(),
        "shm_bytes": total,
        "shm_free_bytes": free,
        "numa_nodes": len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or None,
        "wsl": _wsl(release),
        "container": _container(root),
        "vm": _vm(root),
        "gpu_nodes": _gpu_nodes(root),
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def software() -> dict[str, str | None]:
    """Python and the packages that matter, as they are installed; nothing is imported."""
    return {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _os_name(root: Path) -> str:
    for line in (_read(root / "etc/os-release") or "").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip("\"'")
    return f"{platform.system()} {platform.release()}"


def _memlock() -> int | None:
    """The limit of locked memory in bytes; -1 is no limit."""
    soft = _told(lambda: resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])
    return -1 if soft == resource.RLIM_INFINITY else soft


def _wsl(release: str) -> str | None:
    lower = release.lower()
    return None if "microsoft" not in lower else "WSL2" if "wsl2" in lower else "WSL"


def _container(root: Path) -> str | None:
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    groups = _read(root / "proc/1/cgroup") or ""
    return next((name for name in _CONTAINERS if name in groups), None)


def _vm(root: Path) -> str | None:
    """The hypervisor's product where firmware names it, else "yes" where the CPU says that there is one."""
    flags = (_read(root / "proc/cpuinfo") or "").partition("\nflags")[2].partition("\n")[0].split()
    if "hypervisor" not in flags:
        return None
    return _read(root / "sys/class/dmi/id/product_name") or "yes"


def _gpu_nodes(root: Path) -> list[str]:
    """Device files of NVIDIA GPUs; under WSL2 they share one."""
    return sorted(path.name for pattern in ("nvidia[0-9]*", "dxg") for path in (root / "dev").glob(pattern))


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _read(path: Path) -> str | None:
    return _told(lambda: path.read_text(encoding="utf-8", errors="replace").strip("\0 \n")) or None


def _told(ask: Callable[[], T]) -> T | None:
    """What the system answers; None where it has no answer to give."""
    try:
        return ask()
    except (OSError, ValueError, AttributeError):
        return None
