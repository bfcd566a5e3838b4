"""Backed tensors of the hot path, published every step whether or not they changed, and a whole decode step."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from rig.scenarios._writes import FUSED, NUM_FUSED, Rng, Work, elements

if TYPE_CHECKING:
    from rig.client import Client

NUM_BACKED, ROWS = 20, 1024
_NAMES = [f"backed{index}" for index in range(NUM_BACKED)]
_WRITES = 16  # of a decode step, in each table


def changed(client: Client, rng: Rng, *, tracking: str = "compare") -> Work:
    """Publish all; before that, one element of each was changed."""
    backed = _backed(client, tracking)
    return Work(client.publisher(_NAMES), _changer(client, backed, tracking))


def unchanged(client: Client, rng: Rng, *, tracking: str) -> Work:
    """Publish all although nothing changed, which the target has to find out or was told."""
    _backed(client, tracking)
    return Work(client.publisher(_NAMES))


def decode_step(client: Client, rng: Rng) -> Work:
    """What one step of an engine without new requests costs: publish all, stage and apply new blocks, end the step."""
    backed = _backed(client, "compare")
    names = [f"table{index}" for index in range(NUM_FUSED)]
    tables = [client.make(name, "staged", FUSED) for name in names]
    writer = client.make("writer", "fused", max_writes=NUM_FUSED * _WRITES)
    publish, end = client.publisher(_NAMES), client.step_end()
    parts = [elements(rng, _WRITES, FUSED) for _ in names]
    write = _batch(writer, tables, parts) if client.own else _singles(tables, parts, client.applier("writer", names))

    def call() -> None:
        publish()
        write()
        end()

    return Work(call, _changer(client, backed, "compare"))


def _batch(writer: Any, tables: list[Any], parts: list[Any]) -> Any:
    ids = np.repeat(np.arange(NUM_FUSED), _WRITES)
    rows, starts, values = (np.concatenate([getattr(p, key) for p in parts]) for key in ("rows", "starts", "values"))
    apply = writer.apply_writes
    return lambda: apply(tables, ids, rows, starts, values)


def _singles(tables: list[Any], parts: list[Any], apply: Any) -> Any:
    pairs = zip(tables, parts, strict=True)
    writes = [(table.stage_write, *write) for table, part in pairs for write in part.singles()]

    def stage_each() -> None:
        for stage, row, start, values in writes:
            stage(row, start, values)
        apply()

    return stage_each


def _backed(client: Client, tracking: str) -> list[Any]:
    return [client.make(name, "backed", ROWS, tracking=tracking) for name in _NAMES]


def _changer(client: Client, backed: list[Any], tracking: str) -> Any:
    numbers = count(1)
    marks = [thing.mark_dirty for thing in backed] if client.own and tracking == "caller" else []

    def change() -> None:
        number = next(numbers)
        for thing in backed:
            thing.np[number % ROWS] = number
        for mark in marks:
            mark(number % ROWS)

    return change
