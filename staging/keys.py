"""One number for each place of a batch, and whether all of them lie inside and no place comes twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from staging.elements import WORD, Array

_HALF_WORD = np.dtype(np.int32)
_least = np.minimum.reduce


def keys_of(places: Sequence[Any], shape: Sequence[int], extent: tuple[int, ...]) -> Array | None:
    """One int64 key for each of many places in an array of `shape`, in C order; None where the indices are not int64
    or int32 arrays of the one-dimensional, not empty `extent`, or lie outside, or a place comes twice."""
    if len(extent) != 1 or not extent[0]:
        return None
    is_narrow = False
    for indices in places:
        if indices.__class__ is not np.ndarray or indices.shape != extent:
            return None
        if indices.dtype is not WORD:
            if indices.dtype is not _HALF_WORD:
                return None
            is_narrow = True
    if is_narrow:
        places = [indices.astype(WORD, copy=False) for indices in places]
    try:
        keys: Array = np.ravel_multi_index(tuple(places), tuple(shape))
    except ValueError:  # one is outside
        return None
    return keys if _are_distinct(keys) else None


def _are_distinct(keys: Array) -> bool:
    if len(keys) == 1 or _least(keys[1:] - keys[:-1]) > 0:  # ascending, as engines send them
        return True
    keys = keys.copy()
    keys.sort()
    return bool(_least(keys[1:] - keys[:-1]) > 0)
