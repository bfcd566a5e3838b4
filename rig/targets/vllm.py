"""vLLM's own module, where that package is installed, with or without its compiled part.

On a CPU its UvaBuffer, which pins memory, is replaced by one over ordinary memory that is its own alias, and its kernel
runs in Triton's interpreter; everything else is vLLM's.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

SUMMARY = "vLLM's vllm.v1.worker.gpu.buffer_utils, as installed on the seat"

_NUM_WORDS = 1024
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
    if device.type == "cpu":
        _keep_triton()
    module = importlib.import_module("vllm.v1.worker.gpu.buffer_utils")
    if device.type == "cpu":
        vars(module)["UvaBuffer"] = OrdinaryBuffer
        sys.modules["vllm.utils.torch_utils"].PIN_MEMORY = False  # type: ignore[attr-defined]
    if stripped:  # its fallback buffer asks these two, which ask for parts that are not there
        sys.modules["vllm.platforms"].current_platform = SimpleNamespace(device_type=device.type)  # type: ignore[attr-defined]
        vars(module)["logger"] = SimpleNamespace(warning_once=lambda text: None)
    if stripped and device.type == "cuda":
        vars(module)["get_accelerator_view_from_cpu_tensor"] = live_alias
    if device.type == "cuda":
        prove_live(module.UvaBuffer(_NUM_WORDS, torch.int32), whose="the rig" if stripped else "vLLM's compiled part")
    return module


class OrdinaryBuffer:
    """vLLM's UvaBuffer for a device that is the host."""

    def __init__(self, size: Any, dtype: torch.dtype) -> None:
        self.cpu = self._uva = torch.zeros(size, dtype=dtype)
        self.np = self.cpu.numpy()

    def uva(self, n: int | None = None) -> torch.Tensor:
        return self._uva if n is None else self._uva[:n]


def _keep_triton() -> None:
    """vLLM puts a stub in Triton's place where no GPU's driver is found, as if there were no interpreter."""
    name = "vllm.triton_utils"
    if name not in sys.modules:
        real = ModuleType(name)
        vars(real).update(triton=importlib.import_module("triton"), tl=importlib.import_module("triton.language"))
        vars(real).update(HAS_TRITON=True)
        sys.modules[name] = real


def prove_live(buffer: Any, *, whose: str) -> None:
    """Write after the mapping and read on the device; NotLiveError unless the device sees it, twice.

    A snapshot would make every publish a read of old words, and time a copy that was never made.
    """
    alias = buffer.uva()
    for number in (0x5EED, 0x0DD5):
        buffer.np[:] = number
        seen = (alias + 0).cpu()  # the sum is made by a kernel, where the alias lives
        if not bool((seen == number).all()):
            raise NotLiveError(
                f"the alias of pinned memory that {whose} makes is not live on {alias.device}: the host wrote "
                f"{number:#x} after the mapping, the device read {int(seen[0]):#x}; nothing is judged or timed with it"
            )


def live_alias(pinned: torch.Tensor) -> torch.Tensor:
    """The device's view of pinned memory, which vLLM's compiled part would make."""
    raw = torch.as_tensor(_Pinned(pinned.view(-1).view(torch.uint8)), device="cuda")
    return raw.view(pinned.dtype).view(pinned.shape)


class NotLiveError(Exception):
    """The device does not see what the host writes into mapped memory."""


class _Pinned:
    def __init__(self, raw: torch.Tensor) -> None:
        self.raw = raw

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.raw.numel(),), "typestr": "|u1", "data": (self.raw.data_ptr(), False), "version": 3}
