"""What can be told of a target by looking at it: fences, keywords, whose classes it is built on, why it failed."""

from __future__ import annotations

import inspect
import re
from typing import Any

_NO_GPU = re.compile(
    r"pin[ _]?memory|pinned|cuda|accelerator|nvidia|triton|active driver|\buva\b|(no|without a?) ?gpu|needs? (a )?gpu",
    re.IGNORECASE,
)


def built_on_ours(value: Any) -> bool:
    """Whether a value is our library, one of its modules, classes or functions, or a class derived from one."""
    names = [getattr(value, "__name__", ""), *(base.__module__ for base in getattr(value, "__mro__", ()))]
    names.append(getattr(value, "__module__", None) or "")
    return any(isinstance(name, str) and name.partition(".")[0] == "staging" for name in names)


def takes(kind: Any, keyword: str) -> bool:
    """Whether a callable has a parameter of that name."""
    try:
        return keyword in inspect.signature(kind).parameters
    except (TypeError, ValueError):
        return False


def takes_guard(module: Any) -> bool:
    """Whether a module's pools are fenced: its pool or its manager takes `guard`."""
    return any(takes(getattr(module, name, None), "guard") for name in ("UvaBufferPool", "DeviceMemoryManager"))


def needs_gpu(error: BaseException) -> bool:
    """Whether a constructor failed for lack of pinned memory, CUDA or Triton."""
    programming = (AttributeError, TypeError, NameError, LookupError)
    if isinstance(error, programming) and "_OpNamespace" not in str(error):
        return False
    return bool(_NO_GPU.search(str(error)))


def is_device_error(error: BaseException | None) -> bool:
    """Whether an error, or one that it chains, means that this process lost its device."""
    while error is not None:
        if type(error).__name__ == "AcceleratorError" or "CUDA error:" in str(error):
            return True
        error = error.__cause__
    return False
