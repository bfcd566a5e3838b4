"""Objects that are busy, cannot travel, or are closed: (name, call on a bench, error, fragments of its text)."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import torch
from bad_options import KINDS

import staging
from staging import ClosedError, ConcurrentUseError


def _during(call):
    """Values of an iterable that makes a call of its own between them."""
    yield 1
    call()
    yield 2


def _elsewhere(call):
    """`call` on another thread, its exception raised here."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(call).result()


class During:
    """An integer that makes a call while it is converted."""

    def __init__(self, call):
        self._call = call

    def __index__(self):
        self._call()
        return 1


READS_VALUES = {  # calls that run code of the caller's while they read what they are given
    "stage_write": lambda b, x: b.ints.stage_write(0, 0, x),
    "stage_writes": lambda b, x: b.ints.stage_writes([0, 1], 0, x),
    "stage_write_elem": lambda b, x: b.ints.stage_write_elem(0, x),
    "writer.stage": lambda b, x: b.writer.stage([b.ints], [0, 0], 0, 0, x),
    "copy_to_uva": lambda b, x: b.pool.copy_to_uva(x),
    "copy_to_gpu": lambda b, x: b.pool.copy_to_gpu(x),
    "lease": lambda b, x: b.pool.lease(x),
    "mark_dirty": lambda b, x: b.marked.mark_dirty(x),
}
BUSY = [
    *((f"{name} in itself", lambda b, f=f: f(b, _during(lambda: f(b, [9, 9]))), ConcurrentUseError, "in progress")
      for name, f in READS_VALUES.items()),
    *((f"{name} on two threads", lambda b, f=f: f(b, _during(lambda: _elsewhere(lambda: f(b, [9, 9])))),
       ConcurrentUseError, "in progress", "thread") for name, f in READS_VALUES.items()),
    ("element in itself", lambda b: b.ints.stage_write(0, 0, [During(lambda: b.ints.stage_write(3, 0, [9]))]),
     ConcurrentUseError, "in progress", "own object"),
    ("uva in itself", lambda b: b.uva.uva(During(b.uva.uva)), ConcurrentUseError, "UvaBuffer.uva", "in progress"),
    ("non-uva on two threads", lambda b: b.non_uva.uva(During(lambda: _elsewhere(b.non_uva.uva))), ConcurrentUseError,
     "NonUvaBuffer"),
    ("backed in itself", lambda b: b.backed.copy_to_uva(During(b.backed.copy_to_uva)), ConcurrentUseError,
     "UvaBackedTensor"),
    ("apply in stage", lambda b: b.ints.stage_write(0, 0, _during(b.ints.apply_write)), ConcurrentUseError,
     "apply_write"),
    ("clear in stage", lambda b: b.ints.stage_write(0, 0, _during(b.ints.clear_staged_writes)), ConcurrentUseError,
     "clear_staged"),
    ("fused apply in stage", lambda b: b.ints.stage_write(0, 0, _during(lambda: b.writer.apply([b.ints]))),
     ConcurrentUseError, "StagedWriteTensor", "in progress"),
    ("fused stage in stage",
     lambda b: b.ints.stage_write(0, 0, _during(lambda: b.writer.stage([b.flat, b.ints], [0, 1], 0, 0, [9, 9]))),
     ConcurrentUseError, "StagedWriteTensor", "in progress"),
    ("step on two threads", lambda b: (b.enter(b.manager.step()), _elsewhere(b.manager.end_step)),
     staging.StagingError, "step"),
]  # fmt: skip

PICKLED = [
    (f"{how} {name}", lambda b, n=name, f=f: f(getattr(b, n)), TypeError, "does not pickle", "build")
    for name in ("ints", "writer", "pool", "lease", "backed", "uva", "non_uva", "manager")
    for how, f in (("pickle", pickle.dumps), ("deepcopy", copy.deepcopy))
]

CLOSED = [
    (f"closed {name}", lambda b, call=call: (b.world.settle(), b.manager.close(), call(b)), ClosedError, "was closed",
     "build a new one")
    for name, call in {
        "stage_write": lambda b: b.ints.stage_write(0, 0, [9]),
        "stage_write of nothing": lambda b: b.ints.stage_write(0, 0, []),
        "stage_write_elem": lambda b: b.ints.stage_write_elem(0, 9),
        "stage_writes": lambda b: b.ints.stage_writes([0], 0, [9]),
        "apply_write": lambda b: b.ints.apply_write(),
        "clear_staged_writes": lambda b: b.ints.clear_staged_writes(),
        "writer.stage": lambda b: b.writer.stage([b.ints], [0], 0, 0, [9]),
        "writer.apply": lambda b: b.writer.apply([b.ints]),
        "writer.apply of nothing": lambda b: b.writer.apply([]),
        "copy_to_uva": lambda b: b.pool.copy_to_uva([9]),
        "copy_to_gpu": lambda b: b.pool.copy_to_gpu([9]),
        "lease": lambda b: b.pool.lease([9]),
        "lease.retire": lambda b: b.lease.retire(None),
        "backed": lambda b: b.backed.copy_to_uva(),
        "mark_dirty": lambda b: b.marked.mark_dirty(),
        "uva": lambda b: b.uva.uva(),
        "non-uva": lambda b: b.non_uva.uva(2),
        "transfer": lambda b: staging.async_tensor_h2d([9], manager=b.manager),
        "transfer of nothing": lambda b: staging.async_tensor_h2d([], manager=b.manager),
        "step": lambda b: b.enter(b.manager.step()),
        "end_step": lambda b: b.manager.end_step(),
        "retire": lambda b: b.manager.retire(None),
        "publish": lambda b: b.manager.publish(),
        "default": lambda b: staging.set_default_manager(b.manager),
        "new writer": lambda b: staging.FusedStagedWriter(None, 4, manager=b.manager),
        **{f"new {k.__name__}": lambda b, k=k: k(4, torch.int32, manager=b.manager) for k in KINDS},
    }.items()
]  # fmt: skip
