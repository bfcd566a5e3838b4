"""Proofs that may hang or crash, for a process of their own: `python -m rig.prove FILE PROOF...`.

A proof is "torch", the name of a backend, or one of MEMORY_KINDS; what needs a GPU is tried on the
first one that the process sees. Each appends to FILE the line [proof, null] where it begins and [proof, answer] where
it ends: an answer that is missing at the end did not come back.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from rig import device as gpu
from rig import mapping
from rig.machine import MEMORY_KINDS


def main(path: str, proofs: list[str]) -> None:
    """Try each proof; whatever it raises is an answer, too, and the next one is tried."""
    with open(path, "a", encoding="utf-8") as file:
        for proof in proofs:
            print(json.dumps([proof, None]), file=file, flush=True)
            try:
                answer = _answer(proof)
            except Exception as error:
                answer = {"state": "failed", "reason": f"{type(error).__name__}: {error}".partition("\n")[0]}
            print(json.dumps([proof, answer]), file=file, flush=True)


def _answer(proof: str) -> dict[str, Any]:
    if proof == "torch":
        return _torch()
    device = next(iter(gpu.devices()), None)
    if proof in MEMORY_KINDS:
        if device is None:
            return {"state": "not possible", "reason": "torch sees no CUDA device here"}
        gpu.make_current(device)
        return mapping.liveness(proof, device)._asdict()
    from staging import backends

    told, _ = backends.probe(
        proof, (device or torch.device("cuda")) if proof.startswith("cuda") else torch.device("cpu")
    )
    return {"state": "ok" if told.ok else "failed", "reason": told.reason}


def _torch() -> dict[str, Any]:
    devices = []
    for device in gpu.devices():
        uuid, facts = gpu.facts(device)
        devices.append({"device": str(device), "uuid": uuid} | facts)
    about = {"torch": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip, "devices": devices}
    return {"state": "ok", "reason": ""} | about


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
