"""Run as a program: judges a few cells and prints their records, without times, and a digest of each history."""

from __future__ import annotations

import json

from cells import CPU, spec
from targets.faults import PLAIN
from targets.moments import EARLY

from rig.controls import defaults
from rig.drive import Progress
from rig.judge import Cell, verify
from rig.loading import loaded
from rig.worker import Worker

HASHED = PLAIN.replace(
    "        self._current = 0\n", "        self._current = 0\n        raise ValueError(hash('slot'))\n"
)
TARGETS = {"staging": None, "plain": PLAIN, "early": EARLY, "hashed": HASHED}  # the last one does not repeat itself
CELLS = [
    ("slot_reuse", {"schedule": "late", "streams": 2}),
    ("slot_reuse", {"schedule": "random", "streams": 2, "num_pools": 1}),
    ("growth", {"schedule": "pct", "in_flight": 2, "streams": 2}),
    ("fused_apply", {"schedule": "exhaustive", "num_steps": 2}),
]


def main() -> None:
    worker = Worker(seat="s0", device="cpu", seed=7, apart=False)
    for scenario, more in CELLS:
        params = defaults(scenario) | {"num_steps": 6, "schedules": 5} | more
        for name, source in TARGETS.items():
            asked = {"id": f"{scenario}:{name}@s0", "scenario": scenario, "target": name, "backend": "sim", "seed": 3}
            asked |= {
                "mode": "verify",
                "params": params,
                "seat": "s0",
                "timeout_s": 60.0,
                "limits": {},
                "shrink_s": 30.0,
            }
            bodies = list(worker.run(asked, spec(name, source)))
            bodies[-1].pop("elapsed_s")
            cell = Cell(scenario=scenario, params=params, backend="sim", device=CPU, seed=3, seat="s0")
            with loaded(spec(name, source), device=CPU) as module:
                passes = verify(cell, module, progress=Progress())
                while True:
                    try:
                        next(passes)
                    except StopIteration as stop:
                        print(
                            json.dumps(
                                {
                                    "scenario": scenario,
                                    "target": name,
                                    "records": bodies,
                                    "histories": stop.value.histories,
                                }
                            )
                        )
                        break


if __name__ == "__main__":
    main()
