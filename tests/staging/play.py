"""A world whose late readers keep nothing alive, and the words that each one is due."""

from __future__ import annotations

import time

import numpy as np
import torch
from conftest import World
from torch.multiprocessing.reductions import StorageWeakRef

import staging


class Play(World):
    """One run of a pattern: on a virtual device the schedule is the seed's (0: as late as can be); on a GPU the
    readers of each step wait behind a stall, and memory that is freed under them is poisoned."""

    def __init__(self, backend, seed=0, **options):
        super().__init__(backend, seed=seed, schedule="random" if seed else "late", **options)
        self.told = True  # whether the patterns tell of readers on the other stream
        self.waits = True  # whether a pattern with guard="trust" keeps its side of the bargain
        self._reads = []
        if self.sim is None:
            from rig.device import Stalled

            self._stalled = Stalled(torch.device("cuda", torch.cuda.current_device()), stall_us=5_000)

    def pool(self, size=2, depth=2, dtype=torch.int32, **options):
        return staging.UvaBufferPool(size, dtype, depth, manager=self.manager, **options)

    def launch(self, tensor, due, *, side=False):
        """Queue a reader of `tensor`, all of whose words are to be `due`."""
        if self.sim is None:
            view = self._stalled.hold(tensor)
            if side:  # later than all that waits for the main stream alone, stall included
                self._stalled.launch(view, None, stream="main")
                self._stalled.stream("side").wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(self._stalled.stream("side")):
                    torch.cuda._sleep(40_000_000)
            ticket = self._stalled.launch(view, None, stream="side" if side else "main")
            self._reads.append((lambda: ticket.wait().view(np.int32).tolist(), [due] * tensor.numel()))
            return
        stream = self.sim.stream("side" if side else "main")
        if side:
            self.sim.order(self.sim.record(), stream=stream)
        seen = _Seen(tensor)
        self.sim.enqueue(seen.run, stream=stream)
        self._reads.append((lambda: seen.words, [due] * tensor.numel()))

    def side(self):
        return self.sim.stream("side") if self.sim is not None else self._stalled.stream("side")

    def proceed(self):
        """Let the device do a little of its work."""
        if self.sim is not None:
            self.sim.run_one()
        else:
            time.sleep(1e-4)

    def end_step(self, **streams):
        self.manager.end_step(**streams)
        self.tick()

    def tick(self):
        """A step is over."""
        if self.sim is None:
            self._stalled.poll(0)
            self._stalled.begin_step()

    def finish(self):
        """Run everything; what readers saw that was not due."""
        if self.sim is None:
            self._stalled.poll(0)
        self.settle()
        seen = [(read(), due) for read, due in self._reads]
        self.manager.close()
        return [(words, due) for words, due in seen if words != due]


class _Seen:
    """A reader of memory by its storage, or of nothing where that is freed."""

    def __init__(self, tensor):
        self._weak, self.words = StorageWeakRef(tensor.untyped_storage()), "never run"
        self._layout = tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride()

    def run(self):
        dtype, *layout = self._layout
        held = torch.UntypedStorage._new_with_weak_ptr(self._weak.cdata)
        if held is None:
            self.words = "freed"
        else:
            self.words = torch.empty(0, dtype=dtype).set_(held, *layout).flatten().tolist()
