"""NVIDIA GPUs of this machine as the driver sees them, without torch: what `nvidia-smi -L` lists."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

_LINE = re.compile(r"GPU (?P<index>\d+): .*\(UUID: (?P<uuid>[^)]+)\)")


def visible(timeout_s: float = 20.0) -> dict[str, str]:
    """Index and UUID of each GPU that CUDA_VISIBLE_DEVICES leaves; empty where there is no driver."""
    listing = _listing(timeout_s)
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is None:
        return listing
    chosen = [name.strip() for name in shown.split(",") if name.strip()]
    return {index: uuid for index, uuid in listing.items() if any(c == index or uuid.startswith(c) for c in chosen)}


def uuid_of(device_id: str, timeout_s: float = 20.0) -> str:
    """The UUID of a GPU that Ray calls `device_id`: an index, or already a UUID; the id if nobody knows better."""
    return device_id if not device_id.isdigit() else _listing(timeout_s).get(device_id, device_id)


def used_mib(uuid: str, timeout_s: float = 20.0) -> int | None:
    """The MiB of a GPU's memory that all processes together use; None if nvidia-smi does not say."""
    query = ["nvidia-smi", "-i", uuid, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    if shutil.which(query[0]) is None:
        return None
    try:
        ran = subprocess.run(
            query, capture_output=True, text=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return int(ran.stdout) if ran.returncode == 0 and ran.stdout.strip().isdigit() else None


def _listing(timeout_s: float) -> dict[str, str]:
    if shutil.which("nvidia-smi") is None:
        return {}
    try:
        ran = subprocess.run(
            ["nvidia-smi", "-L"],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return {match["index"]: match["uuid"] for match in map(_LINE.match, ran.stdout.splitlines()) if match}
