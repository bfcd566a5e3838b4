"""The rig: runs stress scenarios against staged-buffer code on every seat of a Ray cluster, and judges what it saw.

    from rig import load_config
    from rig.run import Options, run

    verdict, exit_code = run(load_config("configs/laptop.yaml"), Options(out="runs/mine"))

`run` uses the Ray that the caller has already initialised, and then leaves it running. `rig.plan.plan` shows beforehand
what would be done, `rig.verdict.judge` says again what records mean. Importing `rig` imports nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rig.config import load_config

__all__ = ["load_config"]


def __getattr__(name: str) -> Any:
    if name == "load_config":
        from rig.config import load_config

        return load_config
    raise AttributeError(f"module 'rig' has no attribute {name!r}")
