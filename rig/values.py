"""Payload bits as the values that a target's calls accept: tensors, arrays, lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rig.words import Bits, Form

TORCH: dict[str, torch.dtype] = {
    "int32": torch.int32,
    "int64": torch.int64,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "bool": torch.bool,
    "uint16": torch.uint16,
    "uint32": torch.uint32,
    "uint64": torch.uint64,
}


def convert(form: Form, bits: Bits, *, num_rows: int, via: str) -> Any:
    """The first `num_rows` entries as a tensor, ndarray or list; the first two share the memory of `bits`."""
    tensor = _tensor(form, bits).view(form.shape(num_rows))
    if via == "tensor":
        return tensor
    if via == "list":
        return tensor.tolist()
    if form.dtype == "bfloat16":
        raise ValueError("numpy has no bfloat16: pass it as tensor or list")
    return tensor.numpy()


def flat(form: Form, bits: Bits, *, via: str) -> Any:
    """The elements of one staged write, 1-D."""
    tensor = _tensor(form, bits).view(-1)
    return tensor.tolist() if via == "list" else tensor if via == "tensor" else tensor.numpy()


def _tensor(form: Form, bits: Bits) -> torch.Tensor:
    signed = bits if form.itemsize == 1 else bits.view(np.dtype(f"i{form.itemsize}"))
    return torch.from_numpy(signed).view(TORCH[form.dtype])
