"""Staged writes of the hot path: what is timed, once by single calls and once by the batch call where there is one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rig.client import Client

Ints = NDArray[np.int64]
Rng = np.random.Generator
TABLE = (1024, 8192)
FUSED = (1024, 512)
NUM_FUSED = 8
TOKENS = (16, 131_072)


class Work(NamedTuple):
    """What is timed, and what is done before each repetition without being timed."""

    call: Callable[[], Any]
    before: Callable[[], Any] | None = None


@dataclass(frozen=True, slots=True)
class Elements:
    """Writes of one element each."""

    rows: Ints
    starts: Ints
    values: NDArray[np.int32]

    def singles(self) -> list[tuple[int, int, list[int]]]:
        """As the arguments of single calls."""
        rows, starts, values = self.rows.tolist(), self.starts.tolist(), self.values.tolist()
        return [(row, start, [value]) for row, start, value in zip(rows, starts, values, strict=True)]


def elements(rng: Rng, num: int, size: tuple[int, int]) -> Elements:
    """`num` writes of block ids in ascending rows, each row once as far as there are enough."""
    num_rows, num_cols = size
    rows = np.sort(rng.permutation(np.arange(max(num, num_rows)) % num_rows)[:num])
    return Elements(rows, rng.integers(num_cols, size=num), rng.integers(1 << 20, size=num, dtype=np.int32))


def elements_each(client: Client, rng: Rng, *, num: int = 256) -> Work:
    """One `stage_write` for each element, and the apply."""
    return _each(client, elements(rng, num, TABLE))


def elements_batch(client: Client, rng: Rng, *, num: int = 256) -> Work:
    """All elements by one `apply_writes`, rows ascending."""
    return _at_once(client, elements(rng, num, TABLE))


def elements_batch_shuffled(client: Client, rng: Rng) -> Work:
    """The same with the rows in random order."""
    writes = elements(rng, 256, TABLE)
    return _at_once(client, Elements(rng.permutation(writes.rows), writes.starts, writes.values))


def _each(client: Client, writes: Elements) -> Work:
    table, singles = client.make("table", "staged", TABLE), writes.singles()
    stage, apply = table.stage_write, table.apply_write

    def call() -> None:
        for row, start, values in singles:
            stage(row, start, values)
        apply()

    return Work(call)


def elements_apply(client: Client, rng: Rng, *, num: int) -> Work:
    """The apply alone of elements that were staged by single calls."""
    table, singles = client.make("table", "staged", TABLE), elements(rng, num, TABLE).singles()

    def stage() -> None:
        for write in singles:
            table.stage_write(*write)

    return Work(table.apply_write, stage)


def tokens_apply(client: Client, rng: Rng) -> Work:
    """The apply alone of 131,072 tokens."""
    table, given = client.make("table", "staged", TOKENS), tokens(rng)
    return Work(table.apply_write, lambda: table.stage_write(3, 0, given))


def _at_once(client: Client, writes: Elements) -> Work:
    """By the batch call, where the target has one."""
    if not client.own:
        return _each(client, writes)
    table = client.make("table", "staged", TABLE)
    apply = table.apply_writes
    return Work(lambda: apply(writes.rows, writes.starts, writes.values))


def fused_each(client: Client, rng: Rng, *, num: int = 256) -> Work:
    """One `stage_write` for each element of eight tensors, and one fused apply."""
    names = [f"table{index}" for index in range(NUM_FUSED)]
    stages = [client.make(name, "staged", FUSED).stage_write for name in names]
    client.make("writer", "fused", max_writes=NUM_FUSED * num)
    writes = [(stage, *write) for stage in stages for write in elements(rng, num, FUSED).singles()]
    apply = client.applier("writer", names)

    def call() -> None:
        for stage, row, start, values in writes:
            stage(row, start, values)
        apply()

    return Work(call)


def fused_batch(client: Client, rng: Rng, *, num: int = 256) -> Work:
    """All elements of eight tensors by one `apply_writes` of the writer."""
    if not client.own:
        return fused_each(client, rng, num=num)
    names = [f"table{index}" for index in range(NUM_FUSED)]
    tensors = [client.make(name, "staged", FUSED) for name in names]
    apply = client.make("writer", "fused", max_writes=NUM_FUSED * num).apply_writes
    parts = [elements(rng, num, FUSED) for _ in names]
    ids = np.repeat(np.arange(NUM_FUSED), num)
    rows, starts, values = (np.concatenate([getattr(p, key) for p in parts]) for key in ("rows", "starts", "values"))
    return Work(lambda: apply(tensors, ids, rows, starts, values))


def tokens_list(client: Client, rng: Rng) -> Work:
    """One write of 131,072 tokens from a list."""
    return _tokens(client, tokens(rng).tolist())


def tokens_array(client: Client, rng: Rng) -> Work:
    """The same from an array, where the target takes one."""
    given = tokens(rng)
    return _tokens(client, given if client.own else given.tolist())


def tokens(rng: Rng, num: int = 131_072) -> NDArray[np.int32]:
    """Token ids."""
    return rng.integers(150_000, size=num, dtype=np.int32)


def _tokens(client: Client, given: Any) -> Work:
    table = client.make("table", "staged", TOKENS)
    stage, apply = table.stage_write, table.apply_write

    def call() -> None:
        stage(3, 0, given)
        apply()

    return Work(call)


def prompts_list(client: Client, rng: Rng) -> Work:
    """Eight writes of 8,192 tokens from lists."""
    table = client.make("table", "staged", TOKENS)
    prompts = list(enumerate(tokens(rng, 8192).tolist() for _ in range(8)))
    stage, apply = table.stage_write, table.apply_write

    def call() -> None:
        for row, prompt in prompts:
            stage(row, 0, prompt)
        apply()

    return Work(call)


def copy(client: Client, rng: Rng, *, nbytes: int) -> Work:
    """One write of `nbytes` from an array, from the call until the device is done."""
    table = client.make("table", "staged", (2, nbytes // 4))
    given, stage, apply, sync = tokens(rng, nbytes // 4), table.stage_write, table.apply_write, client.sync

    def call() -> None:
        stage(1, 0, given)
        apply()
        sync()

    return Work(call)
