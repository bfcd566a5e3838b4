"""A target as an engine uses it: by its batch calls where it is built on our library, else by upstream's names alone.

Scenarios that are timed as a whole hold no device code; what they need of a device is here and in `rig.device`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from rig import ops
from rig.target import Target


def _nothing() -> None:
    return None


class Client:
    """One target's objects for one side of a bout. `own`: it has a manager of our library, and so its batch calls."""

    def __init__(self, target: Target, *, name: str, sim: Any = None) -> None:
        self.target, self.name, self._sim = target, name, sim
        self.own, self.device = target.own, target.device
        self.on_gpu = target.device.type == "cuda"
        self._scratch: dict[str, torch.Tensor] = {}

    def become_default(self) -> None:
        """Let what is built without saying so belong to this client's manager."""
        if self.own:
            import staging

            staging.set_default_manager(self.target.manager)

    def make(self, name: str, what: str, size: Any = 0, **more: Any) -> Any:
        """Build an object, as `ops.Make` says it; a keyword that the target lacks is left out."""
        self.target.make(ops.Make(name=name, what=what, size=size, **more))()
        return self.target.objects[name]

    def publisher(self, names: Sequence[str]) -> Callable[[], Any]:
        """The call that publishes all backed tensors, which are `names`."""
        if self.own:
            publish: Callable[[], Any] = self.target.manager.publish
            return publish
        calls = [self.target.objects[name].copy_to_uva for name in names]

        def publish_each() -> None:
            for call in calls:
                call()

        return publish_each

    def applier(self, writer: str, names: Sequence[str]) -> Callable[[], Any]:
        """The call that applies what is staged in all tensors of `names` by a fused writer."""
        return self.target.prepare(ops.FusedApply(name=writer, tensors=tuple(names)), None)

    def step_end(self) -> Callable[[], Any]:
        """The call that ends the engine's step, where the target knows steps."""
        if not self.own:
            return _nothing
        end: Callable[[], Any] = self.target.manager.end_step
        return end

    def sync(self) -> None:
        """Wait until the device has done all that was queued."""
        if self.on_gpu:
            from rig.device import synchronize

            synchronize(self.device)
        elif self._sim is not None:
            self._sim.synchronize()

    def mark(self) -> Callable[[], Any]:
        """Mark here and now on the main stream; calling the result waits until the device has come this far."""
        if self.on_gpu:
            from rig.device import mark

            return mark(self.device)
        if self._sim is None:
            return _nothing
        wait: Callable[[], Any] = self._sim.record().wait
        return wait

    def work(self, gpu_ms: float) -> None:
        """Keep the main stream busy for that long, where there is a GPU."""
        if self.on_gpu and gpu_ms > 0:
            from rig.device import spin

            spin(self.device, us=gpu_ms * 1000)

    def read(self, name: str, *, num_rows: int | None = None) -> None:
        """Launch a kernel that reads what the object last handed out, where there is a GPU."""
        if not self.on_gpu:
            return
        words = self.target.handle(name)
        words = words if num_rows is None else words[:num_rows]
        words = words.view(torch.int32) if words.element_size() == 4 else words
        if name not in self._scratch:
            self._scratch[name] = torch.empty_like(words, device=self.device)
        torch.bitwise_or(words, 0, out=self._scratch[name])

    def words(self, name: str) -> np.ndarray[Any, Any]:
        """What the device holds for the object once everything is done."""
        self.sync()
        held: np.ndarray[Any, Any] = self.target.handle(name).cpu().numpy().copy()
        return held

    def copier(self, num_words: int) -> Callable[[], Any]:
        """A plain copy of int32 words to the device, from pinned memory where there is a GPU; not waited for."""
        host = torch.zeros(num_words, dtype=torch.int32, pin_memory=self.on_gpu)
        device = torch.zeros(num_words, dtype=torch.int32, device=self.device)
        return lambda: device.copy_(host, non_blocking=True)

    def close(self) -> None:
        """Let go of everything."""
        self.sync()
        self._scratch.clear()
        self.target.close()
