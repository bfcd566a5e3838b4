"""`rig submit`: a run as a Ray job, as if it ran here: its log, its folder, its verdict, its exit code.

    rig submit configs/gpu.yaml --address http://10.0.0.1:8265

What can be checked here is checked before anything is uploaded. The job writes to ~/rig-runs/JOB on its node; when
it is over, that folder is brought back, and stays there, too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rig import upload
from rig.cluster_submit import JobServer, job_server
from rig.config import load_config
from rig.errors import UsageError
from rig.interrupts import Interrupted, Interrupts
from rig.jobs import Job, Log, Unreachable, follow
from rig.journal import make_folder
from rig.presets import find
from rig.report import last_line, say
from rig.returned import Returned, conclude
from rig.run import Options, about
from rig.shipment import Shipment, prepare
from rig.verdict import EXIT_INTERRUPTED

STOP_S = 90.0  # Ray kills a job 3 s after it was asked to end, unless its head was told to be more patient


def submit(source: str, switches: Mapping[str, Any]) -> int:
    """Submit, follow, bring back; returns the run's exit code. Call it from the main thread. Raises `UsageError`.

    `switches` are the command line's, all of them: those of `rig run` that change a run, and `address`, `working_dir`,
    `no_working_dir` (the cluster has the package installed), `out` and `no_wait`.
    """
    for one, other in (("working_dir", "no_working_dir"), ("out", "no_wait")):
        if switches[one] and switches[other]:
            raise UsageError(f"--{one} and --{other} exclude each other; give one of them".replace("_", "-"))
    keys = ("settings", "targets", "backends", "seed", "ledger")
    config = load_config(source, **{key: switches[key] for key in keys})
    working_dir = Path(switches["working_dir"]) if switches["working_dir"] else None
    code = {} if switches["no_working_dir"] else upload.code(working_dir)
    shipment = prepare(find(source), config, switches, code=code)
    with tempfile.TemporaryDirectory(prefix="rig-submit-") as folder, job_server(switches["address"]) as server:
        archive = Path(folder) / "submitted.zip"
        upload.write_archive(archive, shipment.files)
        if switches["no_wait"]:
            return _leave(shipment, archive, server)
        recorded = about(Options(config_file=source, overrides=switches["settings"], only=switches["only"]), {}, {})
        returned = Returned(config, make_folder(config.name, switches["out"], is_job=False), about=recorded)
        return _Submission(shipment, archive, server, returned).execute()


class _Submission:
    def __init__(self, shipment: Shipment, archive: Path, server: JobServer, returned: Returned) -> None:
        self._shipment, self._archive, self._server = shipment, archive, server
        self._returned, self._log = returned, Log(say)
        words = last_line("INCOMPLETE", EXIT_INTERRUPTED, returned.folder)
        self._interrupts = Interrupts(last_words=f"\nrig: {_left(shipment, server)}\n{words}\n")

    def execute(self) -> int:
        self._interrupts.listen()
        try:
            _send(self._shipment, self._archive, self._server)
            job = self._follow()
            if job.node and job.is_over:
                self._returned.fetch(self._server, self._shipment, self._archive, job.node, say=say)
            told = conclude(job, self._log, self._returned, job_id=self._shipment.job, say=say)
        except UsageError:
            self._returned.discard()
            raise
        finally:
            self._interrupts.restore()
        exit_code = EXIT_INTERRUPTED if self._interrupts.name else told.exit_code
        say(f"RIG verdict={told.verdict} exit={exit_code} report={told.report}")
        return exit_code

    def _follow(self) -> Job:
        """The job's last state; a signal stops it, and what it still prints is shown."""
        job_id, show = self._shipment.job, self._log.show
        try:
            try:
                return follow(self._server, job_id, show=show, say=say, check=self._interrupts.check)
            except Interrupted as name:
                say(f"rig: {name}: stopping the job, then bringing back what there is")
                self._server.stop(job_id)
                job = follow(self._server, job_id, show=show, say=say, limit_s=STOP_S, lost_s=STOP_S)
        except Unreachable as error:
            job = Job(status="UNKNOWN", message=f"the job server answers no more: {error}")
        if not job.is_over:
            say(f"rig: {_left(self._shipment, self._server)}")
        return job


def _leave(shipment: Shipment, archive: Path, server: JobServer) -> int:
    """Submit, and say how to go on."""
    _send(shipment, archive, server)
    say(f"rig: submitted, not followed; its folder will be {shipment.folder} on the cluster's head")
    for verb in ("logs --follow", "status", "stop"):
        say(f"ray job {verb} --address {server.url} {shipment.job}")
    return 0


def _left(shipment: Shipment, server: JobServer) -> str:
    return f"the job may still run; ray job stop --address {server.url} {shipment.job}"


def _send(shipment: Shipment, archive: Path, server: JobServer) -> None:
    job_id, nbytes = shipment.job, archive.stat().st_size
    say(f"rig: uploading {nbytes / 1e6:.2f} MB, {len(shipment.files)} files, to {server.url} as job {job_id}")
    say(f"rig: never uploaded: {' '.join(upload.LEFT_OUT)}, and what git ignores")
    try:
        server.submit(job_id, entrypoint=shipment.entrypoint, archive=archive, metadata=shipment.metadata)
    except Unreachable as error:
        try:
            server.info(job_id)  # it was accepted, and only the answer was lost
        except Unreachable:
            raise UsageError(f"{server.url}: the job was not accepted: {error}") from None
