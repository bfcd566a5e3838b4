"""Connecting the driver to a Ray cluster, with one clear message where Ray itself would retry for minutes."""

from __future__ import annotations

import importlib
import os
import socket
from pathlib import Path
from typing import Any

import ray

from rig.cluster_env import token
from rig.errors import Incomplete, UsageError

_PROBE_S = 5.0
_CHECK_ALIVE = "/ray.rpc.NodeInfoGcsService/CheckAlive"


def connect(address: str, *, ships_code: bool) -> None:
    """`ray.init` to a running cluster. With `ships_code`, workers get this checkout's `rig` and `staging`.

    Raises `UsageError` if nothing answers at the address, it is no Ray cluster, or it refuses our token; `Incomplete`
    if its Ray or Python is not ours.
    """
    scheme = address.rpartition("://")[0]
    if scheme:
        what = "the client proxy" if scheme == "ray" else "the job server"
        raise UsageError(f"{address}: that is {what}'s form of address; give the head's own, as in 10.0.0.1:6379")
    if address != "auto":
        probe(address)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    if ships_code:
        here = Path(__file__).resolve().parent
        options["runtime_env"] = {"py_modules": [str(here), str(here.parent / "staging")]}
    try:
        ray.init(address=address, **options)
    except Exception as error:
        text = " ".join(str(error).split())
        if "Version mismatch" in text:
            raise Incomplete(
                f"the cluster at {address} runs another Ray or Python than this driver: {text[:400]}"
            ) from error
        raise UsageError(
            f"{address}: cannot connect to Ray ({text[:400]}); is it this address, and is it up?"
        ) from error


def disconnect() -> None:
    """`ray.shutdown`, also of a connection that never came about."""
    ray.shutdown()


def probe(address: str) -> None:
    """Ask the cluster at host:port whether it is there and knows our token, in seconds."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"{address}: expected host:port of a Ray head, as in 10.0.0.1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_S).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"{address}: no Ray cluster answers there ({reason}); start one (ray start --head), or leave out --address "
            "and RAY_ADDRESS to start a local one"
        ) from None
    if os.environ.get("RAY_USE_TLS", "0") in ("", "0"):
        _ask(address)


def _ask(address: str) -> None:
    try:
        grpc: Any = importlib.import_module("grpc")
    except ImportError:  # only ray[default] brings it; then ray.init finds out, slowly
        return
    sent = token() if os.environ.get("RAY_AUTH_MODE") == "token" else ""
    metadata = (("authorization", f"Bearer {sent}"),) if sent else ()
    with grpc.insecure_channel(address) as channel:
        check = channel.unary_unary(_CHECK_ALIVE)
        try:
            check(b"", timeout=_PROBE_S, metadata=metadata)
        except grpc.RpcError as error:
            code = error.code()
            if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
                had = "refuses the token that was found" if sent else "wants a token, and none was found"
                raise UsageError(
                    f"{address}: the cluster {had}; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH "
                    "to its token"
                ) from None
            raise UsageError(
                f"{address}: something answers there that is no Ray head ({code.name}); give the address of the "
                "head's GCS, port 6379 by default"
            ) from None
