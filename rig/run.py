"""The main job: config to plan to seats to records to verdict.

    verdict, exit_code = run(load_config("configs/laptop.yaml"), Options(out="runs/mine"))

The last line on standard output, after Ray is shut down, is always `RIG verdict=V exit=N report=PATH`. A `UsageError`
instead means that nothing was judged.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rig.cluster import hired, is_job, open_cluster, wait_for_nodes
from rig.config import RunConfig
from rig.dispatch import Crew, Dispatch, Job, Lost
from rig.errors import Incomplete, UsageError
from rig.false_alarms import budget
from rig.interrupts import Interrupted, Interrupts
from rig.journal import Journal, make_folder, versions
from rig.plan import Plan, plan
from rig.progress import make_progress
from rig.records import Record
from rig.report import last_line, write_reports
from rig.retries import Retries
from rig.seats import Node, Seat, found, number_seats
from rig.sources import recorded, target_spec
from rig.spool import FOLDER as SPOOLS
from rig.verdict import EXIT_INTERRUPTED

CONTROLS_S = 300.0  # for all controls of one seat
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line adds to a config; `config_file` and `overrides` are recorded, to repeat the run."""

    config_file: str | None = None
    overrides: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    out: str | None = None
    local: bool = False
    address: str | None = None
    fail_fast: bool = False


def run(config: RunConfig, options: Options | None = None) -> tuple[str, int]:
    """Run, record, judge and report; returns verdict and exit code. Call it from the main thread.

    Uses the Ray that this process has already initialised, if it has, and leaves that running. Raises `UsageError`.
    """
    options = options or Options()
    targets = {spec["name"]: spec for spec in map(target_spec, config.targets)}
    rivals = {spec["name"]: spec for spec in map(target_spec, config.compared)}
    folder = make_folder(config.name, options.out, is_job=is_job())
    journal = Journal(config, folder=folder, about=about(options, targets, rivals))
    one = _Run(config, options, targets=targets | rivals, journal=journal)
    outcome = one.execute()
    return one.finish(**outcome)


class _Run:
    def __init__(
        self, config: RunConfig, options: Options, *, targets: dict[str, dict[str, Any]], journal: Journal
    ) -> None:
        self._config, self._options, self._targets, self._journal = config, options, targets, journal
        words = last_line("INCOMPLETE", EXIT_INTERRUPTED, journal.folder)
        self._interrupts = Interrupts(last_words=f"\n{words}\n")
        self._progress = make_progress()
        self._spools = str(journal.folder / SPOOLS)  # of seats on the driver's own machine
        self._kinds: dict[str, str] = {}

    def execute(self) -> dict[str, Any]:
        """Everything up to the last seat's record; returns how it ended. Ray is down when it returns."""
        missing: list[str] = []
        error = None
        self._interrupts.listen()
        try:
            with self._progress:
                if self._options.local:
                    self._in_this_process()
                else:
                    self._on_ray()
        except UsageError:
            self._journal.discard()
            raise
        except Incomplete as reason:
            missing.append(str(reason))
        except (Interrupted, KeyboardInterrupt, SystemExit):  # while nodes start, Ray's own SIGTERM handler exits
            self._interrupts.name = self._interrupts.name or "SIGTERM"
        except Exception as failure:
            if isinstance(failure, OSError) and failure.errno in _FULL:
                missing.append(f"the disk is full: {failure}")
            else:
                error = traceback.format_exc()
        finally:
            self._interrupts.restore()
        return {"interrupted": self._interrupts.name, "missing": missing, "error": error}

    def finish(self, *, interrupted: str | None, missing: Sequence[str], error: str | None) -> tuple[str, int]:
        """Judge the records, write the reports, print the last line."""
        self._journal.end(interrupted=interrupted, missing=missing, error=error)
        if error:
            print(error, file=sys.stderr)
        return write_reports(self._journal.records, self._journal.folder, formats=self._config.reports)

    def _on_ray(self) -> None:
        seats_config, stop = self._config.seats, self._interrupts
        num_nodes = self._config.cluster.local_nodes
        address = self._options.address or os.environ.get("RAY_ADDRESS")
        start = f"connecting to Ray, or else starting {num_nodes} nodes on this machine"
        self._progress.phase(f"connecting to Ray at {address}" if address else start)
        with open_cluster(self._options.address, local_nodes=num_nodes) as where:
            stop.listen()  # ray.init has replaced the handlers
            stop.check()
            wait_s = 0.0 if where == "local" else seats_config.wait_s
            nodes = wait_for_nodes(seats_config.expect, wait_s=wait_s, check=stop.check)
            seats = number_seats(nodes, kind=seats_config.kind)
            jobs = self._begin(seats, nodes, transport="ray")
            self._progress.phase(f"placing {len(seats)} seats on {len(nodes)} nodes")
            stacks = self._journal.folder / "stacks"
            with hired(seats, nodes, config=seats_config, stacks=stacks, check=stop.check) as crew:
                self._progress.phase(f"waiting until {len(seats)} seats are ready")
                ready_s, seed = seats_config.ready_s, self._config.seed
                spools = self._spools if where == "local" else None
                about: dict[str, Any] = {"run": self._journal.run, "seed": seed, "spools": spools}
                self._emit(crew.prepare(**about, ready_s=ready_s, check=stop.check))
                self._dispatch(crew, jobs)

    def _in_this_process(self) -> None:
        from rig import gpus
        from rig.local import LocalCrew, open_shell

        kind = self._config.seats.kind
        num_gpus = 0 if kind == "cpu" else min(1, len(gpus.visible()))
        node = Node(node_id="local", address="this process", num_cpus=1, num_gpus=num_gpus)
        jobs = self._begin(number_seats([node], kind=kind), [node], transport="local")
        (seat,) = jobs
        self._progress.phase("making the worker of this process")
        device = "cuda:0" if num_gpus else "cpu"
        about: dict[str, Any] = {
            "run": self._journal.run,
            "seat": seat,
            "seed": self._config.seed,
            "spools": self._spools,
        }
        shell, is_well = open_shell(device=device, **about), False
        stacks, raising = self._journal.folder / "stacks", self._interrupts.raising
        crew = LocalCrew(shell, seat=seat, stacks=stacks, on_stuck=self._give_up, raising=raising)
        try:
            self._emit([shell.describe() | {"versions": versions()}])
            self._dispatch(crew, jobs)
            is_well = self._interrupts.name is None  # else a batch was cut off
        finally:
            crew.close()
            shell.close(keep_spool=not is_well)

    def _begin(self, seats: Sequence[Seat], nodes: Sequence[Node], *, transport: str) -> dict[str, list[Job]]:
        """Plan, record the plan, and make each seat's jobs. `Incomplete` if there is less than expected."""
        expect = self._config.seats.expect.model_dump() if transport == "ray" else {}  # --local is one seat by choice
        planned = plan(self._config, seats, only=self._options.only)
        has = found(nodes)
        self._journal.begin(seats=seats, plan=planned, expect=expect, found=has, transport=transport)
        if not seats or any(has[what] < wanted for what, wanted in expect.items()):
            offer = "; ".join(f"{n.address}: {n.num_cpus:g} CPU, {n.num_gpus} GPU" for n in nodes[:20])
            raise Incomplete(f"the cluster has {len(nodes)} nodes ({offer or 'none'})")
        self._progress.planned(len(planned.assignments))
        self._kinds = {seat.id: seat.kind for seat in seats}
        return {seat.id: self._jobs(planned, seat) for seat in seats}

    def _jobs(self, planned: Plan, seat: Seat) -> list[Job]:
        own = [a for a in planned.dicts() if a["seat"] == seat.id]
        jobs = [Job(subject=a["id"], timeout_s=a["timeout_s"], assignment=a, target=self._target(a)) for a in own]
        if self._config.controls:
            backends = tuple(dict.fromkeys(a["backend"] for a in own))
            jobs.insert(0, Job(subject="controls", timeout_s=CONTROLS_S, backends=backends))
        return jobs

    def _target(self, assignment: Mapping[str, Any]) -> dict[str, Any]:
        """What an assignment's worker loads, with what it is compared to."""
        spec, rival = self._targets[assignment["target"]], assignment["baseline"]
        return spec | {"baseline": self._targets[rival]} if rival else spec

    def _dispatch(self, crew: Crew, jobs: Mapping[str, Sequence[Job]]) -> None:
        self._progress.phase("controls" if self._config.controls else "assignments")
        self._loop = Dispatch(
            crew,
            jobs,
            run=self._journal.run,
            emit=self._emit,
            stop=self._interrupts.reason,
            on_beat=self._progress.beat,
            fail_fast=self._options.fail_fast,
            retries=Retries(self._kinds, infra=self._config.retry.infra),
        )
        self._loop.work()

    def _emit(self, records: Iterable[Record]) -> None:
        self._progress.took(self._journal.append(records))

    def _give_up(self, lost: Lost) -> None:
        """The main thread is stuck in a call that never returns: write up the run from here, and end the process."""
        self._loop.take(lost)
        _, exit_code = self.finish(interrupted=None, missing=[], error=None)
        sys.stdout.flush()
        os._exit(exit_code)


def about(
    options: Options, targets: Mapping[str, Mapping[str, Any]], rivals: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """What the run record says besides config and plan."""
    return {
        "config_file": options.config_file,
        "overrides": list(options.overrides),
        "only": list(options.only),
        "targets": recorded(targets),
        "baselines": recorded(rivals),
        "versions": versions(),
        "false_alarms": budget(),
        "command": sys.argv[1:],
    }
