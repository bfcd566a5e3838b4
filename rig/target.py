"""The adapter: any module with upstream's names becomes what the drive performs operations on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from rig import ops, values
from rig.faulty_inputs import Collision, spoilt
from rig.traits import built_on_ours, is_interrupt, needs_gpu, optional, takes, takes_guard, takes_tables
from rig.words import Bits, Form

CLASSES = {
    "pool": "UvaBufferPool",
    "backed": "UvaBackedTensor",
    "staged": "StagedWriteTensor",
    "fused": "FusedStagedWriter",
    "uva": "UvaBuffer",
    "nonuva": "NonUvaBuffer",
}


class TargetRaisedError(Exception):
    """A call of the target raised; the error is chained, the text says what was being done."""


class MissingNameError(Exception):
    """The target lacks a name that the scenario needs."""


class NeedsGpuError(Exception):
    """A constructor wants pinned memory, CUDA or Triton, and this seat has none."""


class Target:
    """One module's objects, by name, on one device.

    `fenced`: its pools take `guard`, so every cell is in contract. `own`: it has a manager of our library, which knows
    steps. `stream_ordered`: it says that its publishes are work of the stream, too. `given`: the list of the last call.
    """

    def __init__(self, module: Any, *, device: torch.device, manager: Any = None) -> None:
        self.module, self.device = module, device
        self.manager = manager
        self.objects: dict[str, Any] = {}
        self.forms: dict[str, Form] = {}
        self._outs: dict[str, torch.Tensor] = {}
        self._tables: dict[tuple[str, ...], tuple[torch.Tensor, torch.Tensor]] = {}
        self.fenced = takes_guard(module)
        self.own = manager is not None
        self.reads = optional(module, "RIG_READS")
        self.stream_ordered = self.reads == "stream_ordered"
        self.given: list[Any] = []

    def make(self, op: ops.Make) -> Callable[[], Any]:
        """The constructor's call; NeedsGpuError and MissingNameError come from calling it."""
        kind = self._class(CLASSES[op.what])
        dtype = values.TORCH[op.dtype]
        depth = () if op.depth is None else (op.depth,)
        args: tuple[Any, ...] = (op.size, dtype, *depth)
        keywords: dict[str, Any] = {}
        if op.what == "staged":
            args = (op.size, dtype, self.device, *depth)
            keywords = {"uva_instead_of_gpu": True} if op.uva else {}
        elif op.what == "fused":
            args = (self.device, op.max_writes, *depth)
        elif op.what in ("uva", "nonuva"):
            args = (op.size, dtype)
        wanted = {"guard": op.guard, "tracking": op.tracking}
        keywords |= {key: value for key, value in wanted.items() if value is not None and takes(kind, key)}
        if self.manager is not None and takes(kind, "manager"):
            keywords["manager"] = self.manager

        def build() -> None:
            try:
                self.objects[op.name] = kind(*args, **keywords)
            except Exception as error:
                if self.device.type == "cpu" and needs_gpu(error):
                    raise NeedsGpuError(f"{kind.__name__}: {error}") from error
                raise

        self._forget(op.name)
        self.forms[op.name] = Form(op.name, op.dtype, op.size, op.fill)
        return build

    def prepare(self, op: ops.Op, bits: Bits | None) -> Callable[[], Any]:
        """A call without arguments that performs `op`; inputs are converted here, so that only the target is timed."""
        match op:
            case ops.Make():
                return self.make(op)
            case ops.Publish():
                return partial(self._method(op.name, "copy_to_uva"), self._values(op, bits))
            case ops.CopyToGpu():
                return self._copy_to_gpu(op, bits)
            case ops.WriteBacked() | ops.Expose():
                return self._write_host(op, bits)
            case ops.PublishBacked():
                return partial(self._method(op.name, "copy_to_uva"), *(() if op.num_rows is None else (op.num_rows,)))
            case ops.PublishAll():
                return self._publish_all(op)
            case ops.Collide():
                given = self._values(op, bits)
                write, inner = self._method(op.name, "stage_write"), self._method(op.name, "stage_write_elem")
                return Collision(op, partial(write, op.row, 0), partial(inner, op.elem_row), given)
            case ops.Stage():
                return partial(self._method(op.name, "stage_write"), op.row, op.start, self._values(op, bits))
            case ops.StageElem():
                return partial(self._method(op.name, "stage_write_elem"), op.row, self._values(op, bits)[0])
            case ops.Apply():
                return self._method(op.name, "apply_write")
            case ops.Clear():
                return self._method(op.name, "clear_staged_writes")
            case ops.FusedApply():
                return self._fused_apply(op)
            case ops.Drop():
                return partial(self._drop, op.name)
        raise TypeError(f"a target cannot perform {op!r}")

    def handle(self, name: str) -> Any:
        """The polymorphic handle, read anew: `.device_tensor`, else `.gpu`."""
        thing = self.objects[name]
        for attribute in ("device_tensor", "gpu"):
            try:
                return getattr(thing, attribute)
            except AttributeError:
                continue
            except BaseException as error:
                if is_interrupt(error):
                    raise
                raise TargetRaisedError(f"`{name}`.{attribute}") from error
        raise MissingNameError(f"{type(thing).__name__} has neither `device_tensor` nor `gpu`")

    def is_ours(self, name: str) -> bool:
        """Whether an object is of our library's classes: then its device work runs on the rig's clock."""
        return self.own and built_on_ours(type(self.objects.get(name)))

    def end_step(self) -> None:
        """End the engine's step, where the target knows steps."""
        if self.own:
            self.manager.end_step()

    def retire(self, stream: Any) -> None:
        """Tell of readers on another stream, where the target can be told."""
        if self.own and stream is not None:
            self.manager.retire(stream)

    def close(self) -> None:
        """Let go of everything; the manager frees its memory."""
        self.objects.clear()
        self._outs.clear()
        self._tables.clear()
        if self.own:
            self.manager.close()

    def _copy_to_gpu(self, op: ops.CopyToGpu, bits: Bits | None) -> Callable[[], Any]:
        call = self._method(op.name, "copy_to_gpu")
        if not op.out:
            return partial(call, self._values(op, bits))
        out = self._outs.get(op.name)
        if out is None or out.shape[0] < op.num_rows:
            form = self.forms[op.name]
            out = torch.zeros(
                form.shape(max(op.num_rows, form.length)), dtype=values.TORCH[form.dtype], device=self.device
            )
            self._outs[op.name] = out
        part = out[: op.num_rows]
        given = self._values(op, bits)

        def copy() -> Any:
            result = call(given, out=part)
            return part if isinstance(result, torch.Tensor) else result

        return copy

    def _write_host(self, op: ops.WriteBacked | ops.Expose, bits: Bits | None) -> Callable[[], Any]:
        thing, form = self.objects[op.name], self.forms[op.name]
        first = op.row if isinstance(op, ops.WriteBacked) else 0
        host, via = (thing.cpu, "tensor") if form.dtype == "bfloat16" else (thing.np, "ndarray")
        assert bits is not None
        count = form.length if op.num_rows is None else op.num_rows
        given = values.convert(form, bits, num_rows=count, via=via)
        uva = self._method(op.name, "uva") if isinstance(op, ops.Expose) else None

        tell = getattr(thing, "mark_dirty", None) if getattr(thing, "tracking", None) == "caller" else None

        def write() -> Any:
            host[first : first + count] = given
            if tell is not None:
                tell(slice(first, first + count))
            return None if uva is None else uva() if op.num_rows is None else uva(op.num_rows)

        return write

    def _publish_all(self, op: ops.PublishAll) -> Callable[[], Any]:
        """By the manager, without naming them where they are all there is; else one by one."""
        things = [self.objects[name] for name in op.names]
        if self.own and all(map(self.is_ours, op.names)):
            backed = [thing for thing in self.objects.values() if hasattr(thing, "mark_dirty")]
            return partial(self.manager.publish, *(() if len(backed) == len(things) else (things,)))
        calls = [self._method(name, "copy_to_uva") for name in op.names]
        return lambda: [call() for call in calls]

    def _fused_apply(self, op: ops.FusedApply) -> Callable[[], Any]:
        apply, tensors = self._method(op.name, "apply"), [self.objects[name] for name in op.tensors]
        if not takes_tables(apply):
            return partial(apply, tensors)
        if op.tensors not in self._tables:
            outputs = [self.handle(name) for name in op.tensors]
            self._tables[op.tensors] = (
                torch.tensor([t.data_ptr() for t in outputs], dtype=torch.uint64).to(self.device),
                torch.tensor([t.stride(0) for t in outputs], dtype=torch.int64).to(self.device),
            )
        return partial(apply, tensors, *self._tables[op.tensors])

    def _drop(self, name: str) -> None:
        del self.objects[name]
        self._forget(name)

    def _forget(self, name: str) -> None:
        """What was made for an object that is gone, or made anew."""
        self._outs.pop(name, None)
        self._tables = {names: tables for names, tables in self._tables.items() if name not in names}

    def _values(self, op: Any, bits: Bits | None) -> Any:
        assert bits is not None
        form, beyond = self.forms[op.name], getattr(op, "beyond", "")
        if isinstance(op, ops.Publish | ops.CopyToGpu):
            given = values.convert(form, bits, num_rows=op.num_rows, via=op.via)
        else:
            given = values.flat(form, bits, via=op.via if isinstance(op, ops.Stage) else "list")
        self.given = given if isinstance(given, list) else []
        return spoilt(given, beyond) if beyond in ("value", "iterable") else given

    def _class(self, name: str) -> Any:
        return _named(self.module, name, f"the target has no name `{name}`")

    def _method(self, name: str, method: str) -> Callable[..., Any]:
        thing = self.objects[name]
        bound: Callable[..., Any] = _named(thing, method, f"`{type(thing).__name__}` has no method `{method}`")
        return bound


def _named(owner: Any, name: str, missing: str) -> Any:
    """An attribute of the target; whatever goes wrong on the way is the target's."""
    try:
        return getattr(owner, name)
    except AttributeError as error:
        raise MissingNameError(missing) from error
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise TargetRaisedError(f"`{name}`") from error
