"""What can be told of a target by looking at it: fences, keywords, whose classes it is built on, why it failed."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

_HARDWARE = r"(pin[ _]?memory|pinned|cuda|accelerator|nvidia|triton|uva|gpus?)\b"
_LACKS = "not (compiled|linked) with|requires?|needs?|no|without|no module named|cannot (access|pin|find)"
_NO_GPU = re.compile(  # the hardware's name is not enough: it has to be missing
    rf"({_LACKS})\W+((a|an|any|the|support for|working|active)\W+)*{_HARDWARE}"
    rf"|{_HARDWARE}( (memory|support|allocator|driver))*( (is|are))? (not |un)(available|supported|installed|found)"
    r"|cannot pin|active drivers|driver version is insufficient|dummy base class|_OpNamespace",
    re.IGNORECASE,
)
_OWN = str(Path(__file__).parent)
_TEXT_MAX = 2_000  # characters of an error's text that a record keeps


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


def takes_tables(apply: Any) -> bool:
    """Whether a fused apply wants pointers and strides: room for both behind the tensors, and no default of None."""
    try:
        wanted = [
            p for p in inspect.signature(apply).parameters.values() if p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD)
        ]
    except (TypeError, ValueError):
        return True
    room = len(wanted) >= 3 or any(p.kind is p.VAR_POSITIONAL for p in wanted)
    return room and (len(wanted) == 1 or any(p.default is not None for p in wanted[1:3]))


def optional(module: Any, name: str) -> Any:
    """What a module calls by a name that it need not have, or None; its own `__getattr__` may raise anything."""
    try:
        return getattr(module, name, None)
    except Exception:
        return None


def takes_guard(module: Any) -> bool:
    """Whether a module's pools are fenced: its pool or its manager takes `guard`."""
    return any(takes(optional(module, name), "guard") for name in ("UvaBufferPool", "DeviceMemoryManager"))


def needs_gpu(error: BaseException) -> bool:
    """Whether a constructor failed for lack of pinned memory, CUDA or Triton, not by what it was asked for."""
    programming = (AttributeError, TypeError, NameError, LookupError, ValueError)
    if isinstance(error, programming) and "_OpNamespace" not in str(error):
        return False
    return bool(_NO_GPU.search(str(error)))


def is_interrupt(error: BaseException) -> bool:
    """Whether the rig interrupted this call: a KeyboardInterrupt of its own signal handlers."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    raised_in = trace.tb_frame.f_code.co_filename if trace is not None else ""
    return isinstance(error, KeyboardInterrupt) and raised_in.startswith(_OWN)


def one_line(text: str) -> str:
    """A target's text as a record keeps it: printable and not longer than 2,000 characters."""
    kept = text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]} ... ({len(text):,} characters)"
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in kept)


def is_device_error(error: BaseException | None) -> bool:
    """Whether an error, or one that it chains, means that this process lost its device."""
    while error is not None:
        if type(error).__name__ == "AcceleratorError" or "CUDA error:" in str(error):
            return True
        error = error.__cause__
    return False
