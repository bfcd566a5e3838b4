"""`rig submit` against a head of its own, with a token: exit codes, what is uploaded, what comes back, job states."""

import contextlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from targets.faults import planted

from rig.cluster_sweep import sweep

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray"), pytest.mark.filterwarnings("default")]
ROOT = Path(__file__).resolve().parent.parent
CONFIG = """\
version: 1
name: t
seed: 11
targets: [{target}]
backends: [{backend}]
controls: false
reports: [json]
seats: {{wait_s: 120, ready_s: 120}}
runs:
  - scenario: slot_reuse
    sweep: {{depth: [2, 3, 4]}}
    params: {{num_steps: {num_steps}, rows: 4, in_flight: 2}}
    beyond_contract: true
"""
# The model, except that a pool is never made.
STUCK = """\
import time, torch
from rig.targets import model
names = model.load(fault=None, device=torch.device("cpu"))
globals().update({name: getattr(names, name) for name in dir(names) if name[0] != "_"})
def UvaBufferPool(*sizes, **more):
    time.sleep(600)
"""
DEADLINE_S = 120  # for a machine that others use, too


@dataclass(frozen=True)
class Head:
    """A running head: where its job server and its GCS are, its token, and the home of its jobs."""

    url: str
    gcs: str
    token: str
    home: Path

    def jobs(self) -> dict[str, dict[str, Any]]:
        """The submitted runs, by id, without the small jobs that bring pieces back."""
        told = [job for job in self._call("GET", "/api/jobs/") if job["submission_id"]]
        return {job["submission_id"]: job for job in told if "-piece" not in job["submission_id"]}

    def stop(self, job_id: str) -> None:
        self._call("POST", f"/api/jobs/{job_id}/stop")

    def _call(self, method: str, path: str) -> Any:
        headers = {"Authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(f"{self.url}{path}", method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())


class Submission:
    """`rig submit` as a process of its own, with its output in files."""

    def __init__(
        self, head: Head, folder: Path, *arguments: str, cwd: Path = ROOT, waits: bool = True, **environment: str
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.out = folder / "out"
        self._paths = folder / "stdout.txt", folder / "stderr.txt"
        told = {"HOME": str(folder), "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": head.token}
        words = [sys.executable, "-m", "rig", "submit", *arguments]
        words += ["--out", str(self.out)] if waits else ["--no-wait"]
        words += [] if "--address" in arguments else ["--address", head.url]
        clean = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        with self._paths[0].open("w") as stdout, self._paths[1].open("w") as stderr:
            self.process = subprocess.Popen(
                words, cwd=cwd, env=clean | told | environment, stdout=stdout, stderr=stderr, stdin=subprocess.DEVNULL
            )

    @property
    def stdout(self) -> str:
        return self._paths[0].read_text()

    @property
    def stderr(self) -> str:
        return self._paths[1].read_text()

    @property
    def last(self) -> str:
        return (self.stdout.splitlines() or [""])[-1]

    @property
    def job_id(self) -> str:
        found = re.search(r"as job (\S+)", self.stdout)
        assert found, self.stdout + self.stderr
        return found[1]

    def exit_code(self) -> int:
        return self.process.wait(timeout=DEADLINE_S)

    def report(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads((self.out / "report.json").read_text())
        return told

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.stdout:
            assert self.process.poll() is None, self.stdout + self.stderr
            assert time.monotonic() < deadline, self.stdout + self.stderr
            time.sleep(0.1)


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    """A head with CPUs for several runs at once, and with the package installed; nothing of it is left."""
    folder = Path(tempfile.mkdtemp(prefix="rigsub-", dir="/tmp"))  # short: sockets lie below it
    gcs, dashboard, client = free_ports(3)
    token = secrets.token_hex(32)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")} | {
        "HOME": str(folder),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    }
    command = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", "--node-ip-address=127.0.0.1"]
    command += [f"--port={gcs}", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}", "--num-cpus=4"]
    command += [f"--ray-client-server-port={client}", "--dashboard-agent-listen-port=0", f"--temp-dir={folder}/t"]
    command += ["--min-worker-port=0", "--max-worker-port=0", "--object-store-memory=83886080"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{dashboard}"
        wait_until_healthy(url, process, folder / "log")
        yield Head(url=url, gcs=f"http://127.0.0.1:{gcs}", token=token, home=folder)
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        sweep(folder, spared={os.getpid()})


def free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(number)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in listeners]


def wait_until_healthy(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/api/gcs_healthz", timeout=5):
            return
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)


@pytest.fixture(scope="module")
def passed(head: Head, failed: Submission, tmp_path_factory: pytest.TempPathFactory) -> Submission:
    """A run over a correct target in a cluster that has the package; it runs beside `failed`."""
    folder = tmp_path_factory.mktemp("passed")
    (folder / "c.yaml").write_text(CONFIG.format(target="staging", backend="sim", num_steps=5))
    return Submission(head, folder, str(folder / "c.yaml"), "--no-working-dir", "--set", "runs.0.sweep.depth=[2]")


@pytest.fixture(scope="module")
def failed(head: Head, tmp_path_factory: pytest.TempPathFactory) -> Submission:
    """A faulty file beside its config, both outside the working folder, which has what nobody wants uploaded."""
    folder, outside = tmp_path_factory.mktemp("failed"), tmp_path_factory.mktemp("outside")
    work = folder / "work"
    for name in (".git", ".venv/lib", "runs/old", "my_package"):
        (work / name).mkdir(parents=True)
        (work / name / "noise.bin").write_bytes(secrets.token_bytes(3_000_000 if name != "my_package" else 10))
    (outside / "mine.py").write_text(planted("one_step_early"))
    (outside / "c.yaml").write_text(CONFIG.format(target="mine.py", backend="sim", num_steps=5))
    return Submission(head, folder, str(outside / "c.yaml"), "--working-dir", ".", cwd=work)


@pytest.fixture(scope="module")
def cut_short(
    head: Head, passed: Submission, failed: Submission, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Submission]:
    """Three runs that would not end: one gets Ctrl-C here, one is stopped as a job, and one loses its driver."""
    assert {passed.exit_code(), failed.exit_code()} == {0, 1}
    runs = {}
    for name in ("interrupted", "stopped", "killed"):
        folder = tmp_path_factory.mktemp(name)
        (folder / "stuck.py").write_text(STUCK)
        (folder / "c.yaml").write_text(CONFIG.format(target="stuck.py", backend="cpu", num_steps=5))
        runs[name] = Submission(head, folder, str(folder / "c.yaml"))
    for run in runs.values():
        run.wait_for("s] assignments")
    runs["interrupted"].process.send_signal(signal.SIGINT)
    head.stop(runs["stopped"].job_id)
    os.kill(int(head.jobs()[runs["killed"].job_id]["driver_info"]["pid"]), signal.SIGKILL)
    for run in runs.values():
        run.exit_code()
    return runs


def test_a_run_that_passes_is_exit_0_and_its_job_succeeded(head: Head, passed: Submission) -> None:
    assert passed.exit_code() == 0, passed.stdout + passed.stderr
    assert passed.last == f"RIG verdict=PASS exit=0 report={passed.out / 'report.json'}"
    assert passed.report()["verdict"] == "PASS"
    job = head.jobs()[passed.job_id]
    assert (job["status"], job["driver_exit_code"]) == ("SUCCEEDED", 0)
    assert passed.stdout.count("RIG verdict=") == 1


def test_the_log_comes_whole_and_once(passed: Submission) -> None:
    assert passed.exit_code() == 0
    lines = [line for line in passed.stdout.splitlines() if line.startswith("[")]
    assert any("s] assignments" in line for line in lines)
    assert any(" PASS slot_reuse:staging:sim" in line for line in lines)
    assert len(lines) == len(set(lines))


def test_the_job_carries_name_seed_config_and_version(head: Head, passed: Submission) -> None:
    assert passed.exit_code() == 0
    told = head.jobs()[passed.job_id]["metadata"]
    assert (told["name"], told["seed"]) == ("t", "11")
    assert re.fullmatch("[0-9a-f]{64}", told["config_sha256"])
    assert told["rig_version"]


def test_a_faulty_file_outside_the_working_folder_is_exit_1_and_its_job_failed(head: Head, failed: Submission) -> None:
    assert failed.exit_code() == 1, failed.stdout + failed.stderr
    assert failed.last == f"RIG verdict=FAIL exit=1 report={failed.out / 'report.json'}"
    assert failed.report()["findings"][0]["kind"] == "slot_reuse"
    assert (failed.out / "failures" / "1.yaml").exists()
    job = head.jobs()[failed.job_id]
    assert (job["status"], job["driver_exit_code"]) == ("FAILED", 1)


def test_what_came_back_is_what_the_job_wrote(head: Head, failed: Submission) -> None:
    assert failed.exit_code() == 1
    there = head.home / "rig-runs" / failed.job_id
    names = {path.relative_to(there) for path in there.rglob("*") if path.is_file()}
    assert names == {path.relative_to(failed.out) for path in failed.out.rglob("*") if path.is_file()}
    assert all((there / name).read_bytes() == (failed.out / name).read_bytes() for name in names)


def test_the_upload_is_small_and_its_size_is_told(failed: Submission) -> None:
    assert failed.exit_code() == 1
    told = re.search(r"uploading (\d+\.\d+) MB, (\d+) files", failed.stdout)
    assert told
    assert 0.1 < float(told[1]) < 1.5  # the three folders of 3 MB stayed here


@pytest.mark.parametrize("name", ["interrupted", "stopped"])
def test_a_job_that_is_stopped_leaves_its_report(head: Head, cut_short: dict[str, Submission], name: str) -> None:
    run = cut_short[name]
    assert run.exit_code() == 130, run.stdout + run.stderr
    assert run.last == f"RIG verdict=INCOMPLETE exit=130 report={run.out / 'report.json'}"
    assert head.jobs()[run.job_id]["status"] == "STOPPED"
    assert run.report()["exit_code"] == 130
    records = [json.loads(line) for line in (run.out / "records.jsonl").read_text().splitlines()]
    assert (records[-1]["type"], records[-1]["interrupted"]) == ("end", "SIGTERM")


def test_a_driver_that_dies_is_incomplete_with_what_it_had_recorded(
    head: Head, cut_short: dict[str, Submission]
) -> None:
    run = cut_short["killed"]
    assert run.exit_code() == 4, run.stdout + run.stderr
    assert run.last == f"RIG verdict=INCOMPLETE exit=4 report={run.out / 'report.json'}"
    assert "ended as FAILED without the rig's last line: Job entrypoint command failed with exit code 137" in run.stdout
    assert run.report()["verdict"] == "INCOMPLETE"
    assert len(run.report()["assignments"]) == 3


def test_without_a_wait_the_job_is_left_to_run(head: Head, tmp_path: Path) -> None:
    run = Submission(head, tmp_path, "smoke", waits=False)
    assert run.exit_code() == 0, run.stdout + run.stderr
    assert run.last == f"ray job stop --address {head.url} {run.job_id}"
    assert head.jobs()[run.job_id]["status"] in ("PENDING", "RUNNING")
    head.stop(run.job_id)


@pytest.mark.parametrize(
    ("arguments", "environment", "says"),
    [
        (("--set", "runs.0.scenario=slot_reus"), {}, "unknown scenario 'slot_reus'; did you mean 'slot_reuse'?"),
        (("--target", "gone.py"), {}, "gone.py: no such file"),
        (("--no-wait",), {}, "--out and --no-wait exclude each other"),
        ((), {"RAY_AUTH_TOKEN": "x" * 64}, "the cluster refuses the token that was found"),
        ((), {"RAY_AUTH_TOKEN": "", "RAY_AUTH_MODE": ""}, "the cluster wants a token, and none was found"),
        (("--address", "http://127.0.0.1:1"), {}, "no Ray job server answers there (Connection refused)"),
        (("--address", "GCS"), {}, "something answers there that is no Ray job server"),
        (("--address", "ray://127.0.0.1:1"), {}, "expected the address of a Ray job server"),
    ],
)
def test_what_can_be_checked_first_is_one_line_and_exit_2_and_nothing_is_submitted(
    head: Head, tmp_path: Path, arguments: tuple[str, ...], environment: dict[str, str], says: str
) -> None:
    before = set(head.jobs())
    arguments = tuple(head.gcs if word == "GCS" else word for word in arguments)
    run = Submission(head, tmp_path, "smoke", *arguments, **environment)
    assert run.exit_code() == 2
    assert says in run.stderr
    assert len(run.stderr.splitlines()) == 1
    assert run.stdout == ""
    assert not run.out.exists()
    assert set(head.jobs()) == before
