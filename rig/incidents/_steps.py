"""How incidents write their short lists of operations: objects first, then steps that are all alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rig.ops import Make, Op, Publish, Read, Step

ROWS = 64
RACES = ("sim", "cuda_uva")  # where readers run late over the memory that was handed out
ALL = ("sim", "cpu", "cuda_uva", "cuda_copy")


def steps(
    made: Sequence[Make], each: Callable[[int], Iterable[Op]], *, num_steps: int = 10, in_flight: int = 2
) -> list[Op]:
    """Make the objects, then take steps, each with what `each` tells for its number."""
    listed: list[Op] = [*made]
    for number in range(1, num_steps + 1):
        listed += [Step(number=number, in_flight=in_flight), *each(number)]
    return listed


def pools(*names: str, depth: int = 2) -> list[Make]:
    """Pools of ROWS int32."""
    return [Make(name=name, what="pool", size=ROWS, depth=depth) for name in names]


def publish(name: str, *, num_rows: int = ROWS, stream: str = "main") -> list[Op]:
    """One publish and its reader."""
    return [Publish(name=name, num_rows=num_rows), Read(name=name, stream=stream)]
