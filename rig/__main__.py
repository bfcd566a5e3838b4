"""The command line: `rig run FILE|PRESET`, `rig submit FILE`, `rig plan FILE`, `rig list`, `rig report DIR`,
`rig collect DIR`, `rig table DIR`, `rig doctor`, `rig replay FILE`, `rig budget DIR`.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from rig.errors import UsageError, nearest

EXIT_USAGE, EXIT_ERROR = 2, 70
Verb = Callable[..., int]


class Verbs(click.Group):
    """A group whose unknown verbs are answered in one line."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Like click's, with the nearest verb in the message."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise UsageError(f"unknown verb {args[0]!r}; {nearest(args[0], self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Prove or refute staged-buffer code: stress scenarios from YAML on every seat of a Ray cluster.

    Exit codes: 0 PASS; 1 FAIL; 2 usage; 3 only a limit was broken; 4 INCOMPLETE or SKIP; 5 HANG; 6 INVALID, a planted
    fault was not caught; 70 ERROR in the rig itself; 130 interrupted.
    """


def _options(*, of_run: bool) -> Callable[[Verb], Verb]:
    """The switches that change a config, and for `run` those that say where and how."""
    switches = [
        click.option(
            "--target", "targets", multiple=True, metavar="TARGET", help="Replace the config's targets; repeatable."
        ),
        click.option("--backend", "backends", multiple=True, metavar="NAME", help="Replace its backends; repeatable."),
        click.option(
            "--set", "settings", multiple=True, metavar="A.B=C", help="Set one value, as in runs.0.mode=both."
        ),
        click.option(
            "--only", multiple=True, metavar="ID", help="Only these assignments; * and ? match, @seat may be left out."
        ),
        click.option("--seed", type=int, help="Replace its seed."),
    ]
    if of_run:
        switches += [
            click.option("--out", metavar="DIR", help="The run's folder, new or empty; default runs/NAME-TIME."),
            click.option("--local", is_flag=True, help="No Ray: one seat in this process, for debugging."),
            click.option("--address", metavar="HOST:PORT", help="Connect to this Ray cluster; default RAY_ADDRESS."),
            click.option("--ledger", is_flag=True, help="Report missing edges, too, though the data were right."),
            click.option("--fail-fast", is_flag=True, help="Stop at the first assignment that fails."),
        ]

    def decorate(function: Verb) -> Verb:
        for switch in reversed(switches):
            function = switch(function)
        return function

    return decorate


@cli.command()
@click.argument("config")
@_options(of_run=True)
def run(config: str, **switches: Any) -> int:
    """Run a config FILE or a preset, and judge it."""
    from rig import run as main_job
    from rig.presets import find

    if switches["local"] and switches["address"]:
        raise UsageError("--local means without Ray, and --address names a Ray cluster; give one of them")
    checked = _load(config, switches)
    options = main_job.Options(
        config_file=str(find(config).absolute()),
        overrides=switches["settings"],
        only=switches["only"],
        out=switches["out"],
        local=switches["local"],
        address=switches["address"],
        fail_fast=switches["fail_fast"],
    )
    return main_job.run(checked, options)[1]


@cli.command()
@click.argument("config")
@_options(of_run=False)
@click.option("--ledger", is_flag=True, help="Report missing edges, too, though the data were right.")
@click.option("--fail-fast", is_flag=True, help="Stop at the first assignment that fails.")
@click.option("--address", metavar="URL", help="The job server; default RAY_API_SERVER_ADDRESS, http://127.0.0.1:8265.")
@click.option("--working-dir", metavar="DIR", help="Upload this folder, too, and run in it.")
@click.option("--no-working-dir", is_flag=True, help="Upload no code: the cluster has the package installed.")
@click.option("--out", metavar="DIR", help="Where the run's folder comes to, new or empty; default runs/NAME-TIME.")
@click.option("--no-wait", is_flag=True, help="Submit, and leave; nothing is brought back.")
def submit(config: str, **switches: Any) -> int:
    """Run a config as a Ray job: follow its log, bring its folder back, exit as the run did."""
    from rig import submit as submitting

    return submitting.submit(config, switches)


@cli.command()
@click.argument("config")
@_options(of_run=False)
def plan(config: str, **switches: Any) -> int:
    """Show what a run would do, on the smallest cluster that `expect` allows; starts nothing."""
    from rig.plan import plan as make_plan
    from rig.seats import expected_seats

    checked = _load(config, switches)
    seats = expected_seats(checked)
    planned = make_plan(checked, seats, only=switches["only"])
    click.echo(f"{checked.name}, seed {checked.seed}")
    click.echo(f"seats (from expect): {', '.join(f'{seat.id} {seat.kind}' for seat in seats)}")
    click.echo(f"controls: {'on every seat, before its assignments' if checked.controls else 'off'}")
    for assignment in planned.assignments:
        click.echo(f"{assignment.id}  {assignment.mode}  timeout {assignment.timeout_s:g} s")
    for what, reason in planned.skipped:
        click.echo(f"left out: {what}: {reason}")
    click.echo(f"total: {len(planned.assignments)} assignments on {len(seats)} seats")
    return 0


@cli.command("list")
@click.argument("what", required=False)
def list_(what: str | None) -> int:
    """List scenarios, targets, backends, reports and presets."""
    from rig.listing import listing

    for line in listing(what):
        click.echo(line)
    return 0


@cli.command()
@click.argument("folder", metavar="DIR")
def report(folder: str) -> int:
    """Judge the records of a run again, and render its reports; exits like the run."""
    from rig.records import read
    from rig.report import write_reports

    records = read(Path(folder))
    return write_reports(records, Path(folder), formats=records[0]["config"]["reports"])[1]


@cli.command()
@click.argument("folder", metavar="DIR")
@click.argument("spools", metavar="[SPOOL]...", nargs=-1)
@click.option("--address", metavar="HOST:PORT", help="Look on every node of this Ray cluster; default RAY_ADDRESS.")
@click.option("--local", is_flag=True, help="Look in the temp folder of this machine, without Ray.")
def collect(folder: str, spools: tuple[str, ...], address: str | None, local: bool) -> int:
    """Fetch what the driver of a run never got from its workers' spools, and judge the run again; exits like the run.

    SPOOL is a file rig-spool-* copied from a node, or a folder of such.
    """
    from rig.collect import collect as fetch

    if local and address:
        raise UsageError("--local means without Ray, and --address names a Ray cluster; give one of them")
    return fetch(Path(folder), spools, address=address, local=local, say=click.echo)


@cli.command()
@click.argument("folder", metavar="DIR")
def table(folder: str) -> int:
    """Print the comparisons of a run as Markdown tables, with versions, machine and date."""
    from rig.digest import digest
    from rig.records import read
    from rig.table import markdown

    for line in markdown(digest(read(Path(folder)))):
        click.echo(line)
    return 0


@cli.command()
@click.argument("folder", metavar="DIR")
def budget(folder: str) -> int:
    """Add a long PASS run over correct targets to the false-alarm budget that every report shows."""
    from rig import false_alarms
    from rig.digest import digest
    from rig.records import read

    new = false_alarms.add(digest(read(Path(folder))))
    click.echo(", ".join(f"{key} {value:,}" for key, value in new.items() if isinstance(value, int)))
    return 0


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
@click.option("--timeout", "limit_s", type=click.FloatRange(1, 600), default=8.0, help="Seconds that proofs may take.")
def doctor(as_json: bool, limit_s: float) -> int:
    """Say what this machine has, which backends prove themselves on it, and what to do about the rest.

    Exits 0 if all is well and 4 if something is missing.
    """
    from rig.doctor import report as judge
    from rig.doctor_tables import show
    from rig.examine import examine

    told = judge(examine(limit_s=limit_s))
    click.echo(json.dumps(told)) if as_json else show(told)
    return int(told["exit_code"])


@cli.command()
@click.argument("file")
@click.option("--times", type=click.IntRange(1, 100_000), default=1, metavar="N", help="How often; default 1.")
@click.option("--target", metavar="TARGET", help="Judge another file or module by the same operations: is it fixed?")
@click.option("--ops", "only_ops", is_flag=True, help="Print the operations, and perform nothing.")
def replay(file: str, times: int, target: str | None, only_ops: bool) -> int:
    """Perform the operations of a finding again, from failures/N.yaml of a run.

    Exits with 1 if the finding was there in every try, 0 if nothing was wrong in any, 4 if it was there in some, or if
    this machine lacks the device.
    """
    from rig import replay as replaying

    if only_ops:
        return replaying.show(file, say=click.echo)
    return replaying.replay(file, times=times, target=target, say=click.echo)


def _load(config: str, switches: dict[str, Any]) -> Any:
    from rig.config import load_config

    keys = ("settings", "targets", "backends", "seed", "ledger")
    return load_config(config, **{key: switches[key] for key in keys if key in switches})


def main(arguments: list[str] | None = None) -> None:
    """Run a verb and exit; a usage error is one line on standard error, and exit 2."""
    _mend_streams()
    try:
        sys.exit(cli.main(arguments, prog_name="rig", standalone_mode=False) or 0)
    except UsageError as error:
        message = str(error)
    except click.ClickException as error:
        message = f"{error.format_message()} (see rig --help)"
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except Exception:
        traceback.print_exc()
        sys.exit(EXIT_ERROR)
    print(f"rig: {message}", file=sys.stderr)
    sys.exit(EXIT_USAGE)


def _mend_streams() -> None:
    """Closed streams become the null device, before a file gets their number; what one cannot encode is escaped."""
    for name in ("stdin", "stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115
        elif name != "stdin" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main()
