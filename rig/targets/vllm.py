"""vLLM's own module, where that package is installed, with or without its compiled part."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from typing import Any

import torch

SUMMARY = "vLLM's vllm.v1.worker.gpu.buffer_utils, as installed on the seat"

FOREIGN = True  # it works on the device that it finds, whatever the backend
_COMPILED = ("vllm._C", "vllm._C_stable_libtorch", "vllm._moe_C", "vllm._rocm_C")


def load(*, fault: str | None, device: torch.device) -> Any:
    """The module; raises ImportError where vLLM is not installed."""
    if fault is not None:
        raise ValueError(f"target vllm has no fault {fault!r}; see target faulty")
    installed = importlib.util.find_spec("vllm") is not None
    compiled = importlib.util.find_spec("vllm._C") if installed else None
    stripped = installed and (compiled is None or compiled.loader is None)
    for name in _COMPILED if stripped and compiled is None else ():
        sys.modules[name] = importlib.util.module_from_spec(ModuleSpec(name, None))
    module = importlib.import_module("vllm.v1.worker.gpu.buffer_utils")
    if stripped and device.type == "cuda":
        vars(module)["get_accelerator_view_from_cpu_tensor"] = live_alias
    return module


def live_alias(pinned: torch.Tensor) -> torch.Tensor:
    """The device's view of pinned memory, which vLLM's compiled part would make."""
    raw = torch.as_tensor(_Pinned(pinned.view(-1).view(torch.uint8)), device="cuda")
    return raw.view(pinned.dtype).view(pinned.shape)


class _Pinned:
    def __init__(self, raw: torch.Tensor) -> None:
        self.raw = raw

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.raw.numel(),), "typestr": "|u1", "data": (self.raw.data_ptr(), False), "version": 3}
