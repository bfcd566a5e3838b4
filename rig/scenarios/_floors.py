"""What staged writes cannot beat by much: the same bytes moved without a library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rig.scenarios._writes import TABLE, TOKENS, Rng, Work, elements, tokens

if TYPE_CHECKING:
    from rig.client import Client


def plain_copy(client: Client, rng: Rng, *, nbytes: int) -> Work:
    """The floor of `copy`: pinned memory of that size copied to the device, from the call until it is done."""
    start, sync = client.copier(nbytes // 4), client.sync

    def call() -> None:
        start()
        sync()

    return Work(call)


def numpy_elements(client: Client, rng: Rng, *, num: int) -> Work:
    """The floor of `elements` on a CPU: a loop of slice assignments."""
    return _numpy_loop(elements(rng, num, TABLE).singles(), TABLE)


def numpy_tokens_list(client: Client, rng: Rng) -> Work:
    """The floor of `tokens_list` on a CPU: one slice assignment from a list."""
    return _numpy_loop([(3, 0, tokens(rng).tolist())], TOKENS)


def numpy_tokens_array(client: Client, rng: Rng) -> Work:
    """The floor of `tokens_array` on a CPU: one slice assignment, which is one copy of memory."""
    return _numpy_loop([(3, 0, tokens(rng))], TOKENS)


def _numpy_loop(writes: list[tuple[int, int, Any]], size: tuple[int, int]) -> Work:
    table = np.zeros(size, np.int32)

    def call() -> None:
        for row, start, values in writes:
            table[row, start : start + len(values)] = values

    return Work(call)
