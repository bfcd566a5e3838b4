"""Collect what `rig doctor` judges: facts of the machine, its GPUs, and what each backend and kind of memory proves."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rig import gpus, registry
from rig.machine import MEMORY_KINDS, machine, software
from rig.provers import Answer, Process, Prover, Trouble, environment

_LIST_S = 3.0
_FIELDS = ("index", "uuid", "name", "memory.total", "compute_cap", "driver_version", "mig.mode.current")
_QUERY = ("nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits")
_CONFIDENTIAL = re.compile(r"CC status\s*:\s*(\w+)")


def examine(*, limit_s: float) -> dict[str, Any]:
    """All facts, builtins only. What may hang runs in processes of its own, which are ended after `limit_s`."""
    deadline = time.monotonic() + limit_s
    backends = list(registry.backends())
    on_gpu = [*(name for name in backends if name.startswith("cuda")), *MEMORY_KINDS]
    on_host = [*(name for name in backends if name not in on_gpu), "torch"]  # which CUDA may hang in
    with tempfile.TemporaryDirectory(prefix="rig-doctor-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        smi = _ask_driver(folder)
        seen = gpus.visible(_LIST_S)
        first = Prover([*on_host, *([] if seen else on_gpu)], folder=folder, name="host", env=environment())
        others = {
            f"gpu {index}": Prover(
                on_gpu, folder=folder, name=f"gpu{index}", env=environment(CUDA_VISIBLE_DEVICES=uuid)
            )
            for index, uuid in seen.items()
        }
        told = [("", answer) for answer in first.answers(deadline)]
        told += [(device, answer) for device, prover in others.items() for answer in prover.answers(deadline)]
        driver, listed, confidential = _driver_answers(smi, deadline)
    torch = next(answer.told for _, answer in told if answer.proof == "torch")
    return {
        "machine": machine(),
        "software": software() | {"cuda": torch.get("cuda"), "hip": torch.get("hip")},
        "driver": driver | {"confidential_computing": confidential},
        "gpus": _merged(listed, torch.get("devices", [])),
        "torch": {key: torch[key] for key in ("state", "reason")},
        "backends": list(_rows(told, "name", backends)),
        "memory": list(_rows(told, "kind", MEMORY_KINDS)),
    }


def _ask_driver(folder: Path) -> dict[str, Process]:
    """nvidia-smi, asked for GPUs and for confidential computing; it hangs where the driver does."""
    if shutil.which("nvidia-smi") is None:
        return {}
    asked = {"query": _QUERY, "confidential": ("nvidia-smi", "conf-compute", "-f")}
    return {name: Process(command, folder=folder, name=name) for name, command in asked.items()}


def _driver_answers(
    smi: Mapping[str, Process], deadline: float
) -> tuple[dict[str, Any], list[dict[str, Any]], str | None]:
    """How the driver answered, the GPUs that it lists, and whether it computes confidentially, if it says so."""
    if not smi:
        return {"state": "none", "reason": "no nvidia-smi", "version": None}, [], None
    trouble: Trouble | None = smi["query"].end(deadline)
    listed = parse_gpus(smi["query"].out.read_text(encoding="utf-8", errors="replace")) if trouble is None else []
    about = {"state": "ok", "reason": ""} if trouble is None else trouble._asdict()
    silent = smi["confidential"].end(deadline)
    said = smi["confidential"].out.read_text(encoding="utf-8", errors="replace") if silent is None else ""
    version = next((gpu["driver"] for gpu in listed), None)
    match = _CONFIDENTIAL.search(said)
    return about | {"version": version}, listed, match[1].lower() if match else None


def parse_gpus(text: str) -> list[dict[str, Any]]:
    """nvidia-smi's table of _FIELDS; None where it says that there is no such thing."""
    found = []
    for line in text.splitlines():
        cells: list[str | None] = [None if cell.strip().startswith("[") else cell.strip() for cell in line.split(",")]
        if len(cells) == len(_FIELDS):
            index, uuid, name, memory, capability, driver, mig = cells
            size = int(memory) << 20 if memory and memory.isdigit() else None
            about = {"index": index, "uuid": uuid, "name": name, "memory_bytes": size, "compute_capability": capability}
            found.append(about | {"driver": driver, "mig": mig.lower() if mig else None})
    return found


def _merged(listed: Sequence[dict[str, Any]], devices: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The driver's GPUs, each with the name of its torch device if torch sees it, and those that only torch sees."""
    by_uuid = {device["uuid"]: device["device"] for device in devices}
    known = [gpu | {"device": by_uuid.pop(gpu["uuid"], None)} for gpu in listed]
    for device in devices:
        if device["uuid"] in by_uuid:
            about = {
                "index": None,
                "uuid": device["uuid"],
                "name": device["gpu"],
                "memory_bytes": device["gpu_memory_bytes"],
            }
            about |= {"compute_capability": device["compute_capability"], "driver": None, "mig": None}
            known.append(about | {"device": device["device"]})
    return known


def _rows(told: Sequence[tuple[str, Answer]], key: str, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for device, (proof, answer) in told:
        if proof in names:
            yield {key: proof, "device": device} | answer
