"""Operations as data: what a scenario yields, a target performs and the model performs too.

An operation names objects and extents only; payloads follow from where and when it is performed (see `rig.words`). So
the same stream comes from YAML, from a saved failure or from a property test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

DTYPES: tuple[str, ...] = ("int32", "int64", "float32", "float64", "float16", "bfloat16", "int16", "int8", "uint8")
DTYPES += ("bool", "uint16", "uint32", "uint64")
FILLS = ("words", "extremes", "nan")
KINDS = ("pool", "backed", "staged", "fused", "uva", "nonuva")
VIAS = ("tensor", "ndarray", "list")
REFUSED = ("bounds", "value", "iterable")  # what `beyond` may name that has to raise and change nothing


@dataclass(frozen=True, slots=True)
class Param:
    """One scenario parameter: default, kind ("int", "float", "bool", "str", "list") and limits.

    `min`, `max` and `choices` bind a number or a string; of a list, they bind every item (and a list is never empty).
    """

    default: Any
    kind: str
    min: float | None = None
    max: float | None = None
    choices: tuple[Any, ...] | None = None
    help: str = ""

    def problem(self, value: Any) -> str | None:
        """Say what is wrong with `value`, or None."""
        if self.kind == "list":
            if not isinstance(value, list | tuple) or not value:
                return f"expected a list of at least one item, got {value!r}"
            return next((text for text in map(self._item_problem, value) if text), None)
        wanted: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}
        if not isinstance(value, wanted[self.kind]) or (isinstance(value, bool) and self.kind != "bool"):
            return f"expected {self.kind}, got {value!r}"
        return self._item_problem(value)

    def _item_problem(self, value: Any) -> str | None:
        if self.choices is not None and not any(value == c and type(value) is type(c) for c in self.choices):
            return f"expected one of {', '.join(map(str, self.choices))}, got {value!r}"
        if self.min is None and self.max is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"expected a number, got {value!r}"
        if self.min is not None and not value >= self.min:
            return f"expected at least {self.min:g}, got {value!r}"
        if self.max is not None and not value <= self.max:
            return f"expected at most {self.max:g}, got {value!r}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """What every operation has: `verb`, its public name, also the name of its latency."""

    verb: ClassVar[str] = ""

    def to_dict(self) -> dict[str, Any]:
        """Builtins only; fields at their default are left out."""
        return {"op": self.verb} | {
            f.name: _plain(value) for f in fields(self) if (value := getattr(self, f.name)) != f.default
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Make(Op):
    """Build an object. `size` is rows, or (rows, columns); `depth` is max_concurrency; the rest where it applies."""

    verb: ClassVar[str] = "make"
    name: str
    what: str  # one of KINDS
    size: int | tuple[int, ...] = 0
    dtype: str = "int32"
    depth: int | None = None
    uva: bool = False  # staged: uva_instead_of_gpu
    max_writes: int = 0  # fused
    guard: str | None = None  # pool: passed where the target takes it
    tracking: str | None = None  # backed: likewise
    fill: str = "words"  # what its payloads are made of, one of FILLS


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Op):
    """Begin an engine step; all readers of steps <= number - in_flight are settled first.

    `scoped`: a target with step fences uses them; else the lease of a publish ends at the pool's next one.
    """

    verb: ClassVar[str] = "step"
    number: int
    in_flight: int
    scoped: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish(Op):
    """Pool: copy_to_uva of `num_rows` fresh rows. `beyond`: "value" (one of them is no number; it must raise)."""

    verb: ClassVar[str] = "publish"
    name: str
    num_rows: int
    via: str = "tensor"  # one of VIAS
    beyond: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyToGpu(Op):
    """Pool: copy_to_gpu of `num_rows` fresh rows, into an `out` that the rig owns if asked."""

    verb: ClassVar[str] = "copy_to_gpu"
    name: str
    num_rows: int
    via: str = "tensor"
    out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteBacked(Op):
    """Backed tensor: write fresh rows into the host array."""

    verb: ClassVar[str] = "write_backed"
    name: str
    row: int
    num_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishBacked(Op):
    """Backed tensor: copy_to_uva of all rows, or of the first `num_rows`."""

    verb: ClassVar[str] = "publish_backed"
    name: str
    num_rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishAll(Op):
    """Backed tensors: what an engine does once a step for all of them, by the manager where the target has one."""

    verb: ClassVar[str] = "publish_all"
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expose(Op):
    """UvaBuffer or NonUvaBuffer: write `num_rows` fresh rows, or all, into the host array, then uva(num_rows) or uva().

    Settle before.
    """

    verb: ClassVar[str] = "expose"
    name: str
    num_rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(Op):
    """Staged tensor: stage_write of `length` values at (row, start); for a 1-D tensor at element row + start.

    `beyond` names what upstream's contract does not promise: "" (nothing) or "overlap" (the last write wins, or the
    call raises), or what must raise and stage nothing: "bounds", "value" (one value is no number) or "iterable" (the
    iterable that gives the values raises midway).
    """

    verb: ClassVar[str] = "stage"
    name: str
    row: int
    start: int
    length: int
    via: str = "list"
    beyond: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageElem(Op):
    """Staged tensor: stage_write_elem, one value at column 0 of `row`, or at element `row` of a 1-D tensor."""

    verb: ClassVar[str] = "stage_elem"
    name: str
    row: int
    beyond: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collide(Op):
    """Staged tensor: stage_write at (row, 0) of an iterable, in the midst of which another call on the tensor is made.

    That call, stage_write_elem of `elem_row`, comes from within ("reenter") or from another thread ("thread"). The
    target may refuse either of them; what it accepts it must keep whole.
    """

    verb: ClassVar[str] = "collide"
    name: str
    row: int
    length: int
    elem_row: int
    how: str = "reenter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply(Op):
    """Staged tensor: apply_write."""

    verb: ClassVar[str] = "apply"
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedApply(Op):
    """Fused writer: one apply over several staged tensors."""

    verb: ClassVar[str] = "fused_apply"
    name: str
    tensors: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clear(Op):
    """Staged tensor: clear_staged_writes."""

    verb: ClassVar[str] = "clear"
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Read(Op):
    """Launch a reader of what `name` last handed out (`back` publishes of this step before), whole or in part.

    `first` of a two-dimensional staged tensor: the row where it begins.
    """

    verb: ClassVar[str] = "read"
    name: str
    num_rows: int | None = None
    first: int = 0
    back: int = 0
    stream: str = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle(Op):
    """Wait for every reader and check what it saw."""

    verb: ClassVar[str] = "settle"


@dataclass(frozen=True, slots=True, kw_only=True)
class OnThread(Op):
    """From here on another thread makes the calls; the first one is "main". The drive waits for each of them."""

    verb: ClassVar[str] = "on_thread"
    thread: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Weigh(Op):
    """Settle, then weigh what the process holds: one cycle of a stream that repeats itself is over."""

    verb: ClassVar[str] = "weigh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop(Op):
    """Forget an object, as an engine does that lets go of it."""

    verb: ClassVar[str] = "drop"
    name: str


_KINDS: tuple[type[Op], ...] = (Make, Step, Publish, CopyToGpu, WriteBacked, PublishBacked, Expose, Stage, StageElem)
_KINDS += (PublishAll, Collide, Apply, FusedApply, Clear, Read, Settle, OnThread, Weigh, Drop)
OPS: dict[str, type[Op]] = {kind.verb: kind for kind in _KINDS}


def from_dict(data: Mapping[str, Any]) -> Op:
    """The inverse of `Op.to_dict`; ValueError names an unknown operation, TypeError an unknown field."""
    fields_ = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items() if key != "op"}
    if data.get("op") not in OPS:
        raise ValueError(f"unknown operation {data.get('op')!r}; known: {', '.join(OPS)}")
    return OPS[data["op"]](**fields_)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
