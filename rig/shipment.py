"""A checked config as a Ray job: its command, what has to travel, and what is told of it."""

from __future__ import annotations

import hashlib
import json
import shlex
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rig import upload
from rig.config import RunConfig
from rig.sources import target_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipment:
    """A job before it is sent: its id, its command, what travels (name in the archive -> file), and what is told of
    it.
    """

    job: str
    entrypoint: str
    files: dict[str, Path]
    metadata: dict[str, str]

    @property
    def folder(self) -> str:
        """Where the run's folder is on the cluster, for a shell there."""
        return f"~/rig-runs/{self.job}"


def prepare(path: Path, config: RunConfig, switches: Mapping[str, Any], *, code: Mapping[str, Path]) -> Shipment:
    """The job that runs `config`, read from `path`, with `code` (name in the archive -> file).

    Files that are targets are replaced by their copies in the upload.
    """
    entries = dict.fromkeys((*config.targets, *config.compared))
    targets = [entry for entry in entries if target_spec(entry)["kind"] == "file"]
    copies = {entry: f"{upload.SUBMITTED}/{number}/{Path(entry).name}" for number, entry in enumerate(targets)}
    submitted = f"{upload.SUBMITTED}/{path.name}"
    job = f"{config.name}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"
    command = ["python", "-m", "rig", "run", submitted, *_switches(config, switches, copies)]
    return Shipment(
        job=job,
        entrypoint=f"{shlex.join(command)} --out ~/rig-runs/{job}",  # the shell there knows its ~
        files={**code, submitted: path} | {copy: Path(entry) for entry, copy in copies.items()},
        metadata=_metadata(path, config),
    )


def _switches(config: RunConfig, switches: Mapping[str, Any], copies: Mapping[str, str]) -> list[str]:
    """The caller's switches, with the copies in place of the files."""
    words = [word for setting in switches["settings"] for word in ("--set", setting)]
    for number, entry in enumerate(config.runs):
        if entry.compare and entry.compare in copies:
            words += ["--set", f"runs.{number}.compare={json.dumps(copies[entry.compare])}"]
    if copies or switches["targets"]:
        words += [word for entry in config.targets for word in ("--target", copies.get(entry, entry))]
    words += [word for name in switches["backends"] for word in ("--backend", name)]
    words += [word for id_ in switches["only"] for word in ("--only", id_)]
    if switches["seed"] is not None:
        words += ["--seed", str(switches["seed"])]
    return words + [f"--{name.replace('_', '-')}" for name in ("ledger", "fail_fast") if switches[name]]


def _metadata(path: Path, config: RunConfig) -> dict[str, str]:
    """What `ray job list` shows of the job: strings only."""
    try:
        rig_version = version("staging-rig")
    except PackageNotFoundError:
        rig_version = "unknown"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"name": config.name, "seed": str(config.seed), "config_sha256": digest, "rig_version": rig_version}
