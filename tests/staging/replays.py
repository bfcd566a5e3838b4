"""Graphs that read a held slot, captured and replayed late on every device."""

from __future__ import annotations

import torch

import staging


class Graph:
    """A captured reader of `tensor`; `within` is called during the capture. Nothing runs until it is replayed."""

    def __init__(self, world, tensor, within=lambda: None):
        self.world, self.out = world, torch.zeros_like(tensor)
        if world.sim is not None:
            with world.sim.capture() as self.graph:
                world.sim.enqueue(lambda: self.out.copy_(tensor))
                within()
            return
        warm_up = torch.cuda.Stream()
        warm_up.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm_up):
            torch.bitwise_or(tensor, 0, out=self.out)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            torch.bitwise_or(tensor, 0, out=self.out)
            within()

    def replay(self):
        """Replay it late; the function returned waits and gives what that replay read."""
        if self.world.sim is not None:
            seen = []
            self.graph.replay()
            self.world.sim.enqueue(lambda: seen.append(self.out.clone()))
            return lambda: self.world._after(lambda: seen[0]).tolist()
        torch.cuda._sleep(20_000_000)  # about 10 ms
        self.graph.replay()
        copy = self.out.clone()
        return lambda: self.world._after(lambda: copy).tolist()


def hold(world, size=2, depth=2, rows=1, **options):
    pool = staging.UvaBufferPool(size, torch.int32, depth, manager=world.manager, **options)
    pool.copy_to_uva([0] * rows)
    return pool, pool.hold_for_graph()
