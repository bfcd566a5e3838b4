"""YAML to a frozen, checked `RunConfig`; every complaint is one `UsageError` that names file and line.

A config is data: no environment variable changes its meaning. `load_config` also applies the command line's overrides,
so that one place decides what is legal. Importing this module imports no torch and no ray; scenario files are light and
are imported for their parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rig import overrides, problems
from rig.errors import UsageError
from rig.files import read_text
from rig.marks import parse
from rig.presets import find
from rig.sources import locate

Positive = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]


class Strict(BaseModel):
    """Frozen, no unknown keys, no conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ClusterConfig(Strict):
    """The local cluster, used only where the rig starts Ray itself: `local_nodes` raylets on this machine."""

    local_nodes: Annotated[int, Field(ge=1, le=16)] = 2


class Expect(Strict):
    """The least a cluster must have: nodes with CPUs, and GPUs."""

    cpu_nodes: Annotated[int, Field(ge=0, le=100_000)] = 0
    gpus: Annotated[int, Field(ge=0, le=100_000)] = 0


class SeatsConfig(Strict):
    """Which seats: `auto` is one per GPU if there is any, else one per node with CPUs.

    `wait_s` covers nodes and placement, `ready_s` the start of one wave of actors.
    """

    kind: Literal["auto", "gpu", "cpu"] = "auto"
    expect: Expect = Expect(cpu_nodes=1)
    wait_s: Positive = 60.0
    ready_s: Positive = 60.0


class RunEntry(Strict):
    """One scenario, swept over the full product of `sweep`; `params` are the same in every cell.

    `compare` names the target that a timed scenario holds each target against, in alternation; `ratio_min` says by
    case how many times faster than that one it has to be.
    """

    scenario: str
    mode: Literal["verify", "measure", "both"] = "verify"
    sweep: dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]] = {}
    params: dict[str, Any] = {}
    beyond_contract: bool = False
    timeout_s: Positive = 120.0
    limits: dict[str, Positive] = {}
    compare: str | None = None
    ratio_min: dict[str, Positive] = {}


class RetryConfig(Strict):
    """How often what a lost seat did not get to is run again, on a live seat of its kind; failures never are.

    A run that allows it may lose seats and pass, as long as nothing is missing and `expect` still holds.
    """

    infra: Annotated[int, Field(ge=0, le=10)] = 0


class RunConfig(Strict):
    """One run, complete: `load_config` makes it from YAML, and any caller may build it in Python.

    `ledger`: verify passes also report accesses that no edge puts in order, though the data were right.
    """

    version: Annotated[int, Field(ge=1, le=1)]
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    cluster: ClusterConfig = ClusterConfig()
    seats: SeatsConfig = SeatsConfig()
    targets: Annotated[tuple[str, ...], Field(min_length=1)] = ("staging",)
    backends: Annotated[tuple[str, ...], Field(min_length=1)] = ("auto",)
    controls: bool = True
    shrink_s: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 5.0  # per assignment with findings
    ledger: bool = False
    retry: RetryConfig = RetryConfig()
    runs: Annotated[tuple[RunEntry, ...], Field(min_length=1)]
    faults: Annotated[tuple[Any, ...], Field(max_length=0)] = ()
    reports: tuple[str, ...] = ("console", "json")

    @property
    def compared(self) -> tuple[str, ...]:
        """The entries of `compare`, each once."""
        return tuple(dict.fromkeys(entry.compare for entry in self.runs if entry.compare))


def load_config(
    source: str | Path,
    *,
    settings: Sequence[str] = (),
    targets: Sequence[str] = (),
    backends: Sequence[str] = (),
    seed: int | None = None,
    ledger: bool = False,
) -> RunConfig:
    """Read a YAML file, or a preset by its name, and apply overrides.

    `settings` are "a.b=c" with c typed as YAML; `targets`, `backends` and `seed` replace the config's, and
    `ledger` turns it on. Raises `UsageError`.
    """
    path = find(str(source))
    data, marks = parse(read_text(path, what="config"), name=str(path))
    if not isinstance(data, dict):
        raise UsageError(
            f"{marks.at(())}: found {problems.shown(data)}; expected a mapping with version, name and runs"
        )
    for setting in settings:
        overrides.apply(data, marks, setting)
    for key, switch, values in (("targets", "--target", targets), ("backends", "--backend", backends)):
        if values:
            overrides.replace(data, marks, key=key, switch=switch, value=list(values))
    if seed is not None:
        overrides.replace(data, marks, key="seed", switch="--seed", value=seed)
    if ledger:
        overrides.replace(data, marks, key="ledger", switch="--ledger", value=True)
    try:
        config = RunConfig.model_validate(_frozen(data))
    except ValidationError as error:
        raise UsageError(problems.of_model(error, marks, RunConfig)) from None
    config = config.model_copy(
        update={
            "targets": tuple(locate(entry, path.parent) for entry in config.targets),
            "runs": tuple(_located(entry, path.parent) for entry in config.runs),
        }
    )
    found = problems.of_names(config)
    if found:
        raise UsageError(problems.message(found, marks))
    return config


def _located(entry: RunEntry, folder: Path) -> RunEntry:
    return entry.model_copy(update={"compare": locate(entry.compare, folder)}) if entry.compare else entry


def _frozen(value: Any) -> Any:
    """Lists become tuples, all the way down."""
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    return value
