"""The Ray side on a real cluster of two nodes: placement, loss, hang, and nothing left behind."""

import contextlib
import http.server
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rig import dispatch
from rig.cluster import open_cluster
from rig.cluster_connect import probe
from rig.cluster_env import setting
from rig.config import RunConfig
from rig.errors import UsageError
from rig.run import Options, run

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray"), pytest.mark.filterwarnings("default")]
ROOT = Path(__file__).resolve().parent.parent
# The model with one pool depth at which something happens to the process.
TARGET = """\
import ctypes, os, signal, time
import torch
from rig.targets import model
names = model.load(fault=None, device=torch.device("cpu"))
globals().update({name: getattr(names, name) for name in dir(names) if name[0] != "_"})
_pool = names.UvaBufferPool
def UvaBufferPool(size, dtype, depth=None, **more):
    if depth == 3:
        BODY
    return _pool(size, dtype, depth, **more)
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster of two CPU nodes that this process is connected to."""
    with open_cluster(None, local_nodes=2) as where:
        assert where == "local"
        import ray

        yield ray.get_runtime_context().gcs_address


def config(**more: Any) -> RunConfig:
    entry = {
        "scenario": "slot_reuse",
        "sweep": {"depth": (2, 3)},
        "params": {"num_steps": 3, "rows": 4, "in_flight": 1},
    }
    base: dict[str, Any] = {"version": 1, "name": "t", "targets": ("model",), "backends": ("cpu",), "controls": False}
    return RunConfig.model_validate(base | {"runs": (entry,), "reports": ("json",)} | more)


def judged(folder: Path, checked: RunConfig) -> tuple[tuple[str, int], dict[str, Any]]:
    ended = run(checked, Options(out=str(folder / "out")))
    return ended, json.loads((folder / "out" / "report.json").read_text())


def test_each_node_is_a_seat_and_the_callers_ray_is_left_running(address: str, tmp_path: Path) -> None:
    import ray

    ended, report = judged(tmp_path, config(controls=True))
    assert ended == ("PASS", 0)
    assert [seat["id"] for seat in report["seats"]] == ["s0", "s1"]
    assert len({seat["environment"]["pid"] for seat in report["seats"]}) == 2
    assert {(c["seat"], c["caught"]) for c in report["controls"]} == {("s0", True), ("s1", True)}
    assert report["verdict_counts"]["PASS"] == 4
    assert ray.is_initialized()


@pytest.mark.parametrize(
    ("body", "ended", "reason"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", ("INCOMPLETE", 4), "is gone"),
        ("os._exit(3)", ("FAIL", 1), "os._exit(3) was called"),
        ("ctypes.string_at(0)", ("FAIL", 1), "Segmentation fault"),
    ],
)
def test_dead_actor_keeps_what_it_told_and_is_judged_by_what_it_left(
    address: str, tmp_path: Path, body: str, ended: tuple[str, int], reason: str
) -> None:
    (tmp_path / "mine.py").write_text(TARGET.replace("BODY", body))
    told, report = judged(tmp_path, config(targets=(str(tmp_path / "mine.py"),)))
    assert told == ended
    assert report["verdict_counts"]["PASS"] == 2
    lost = [a for a in report["assignments"] if a["verdict"] != "PASS"]
    assert {a["verdict"] for a in lost} == {ended[0]}
    assert all(reason in a["reason"] for a in lost)


def test_hang_saves_the_stacks_of_every_seat(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "GRACE_S", 0.5)
    (tmp_path / "mine.py").write_text(TARGET.replace("BODY", "time.sleep(600)"))
    entry = {"scenario": "slot_reuse", "sweep": {"depth": (3, 2)}, "params": {"num_steps": 3}, "timeout_s": 0.5}
    ended, report = judged(tmp_path, config(targets=(str(tmp_path / "mine.py"),), runs=(entry,)))
    assert ended == ("HANG", 5)
    assert report["verdict_counts"] | {"HANG": 2, "INCOMPLETE": 2} == report["verdict_counts"]
    assert all("mine.py" in (tmp_path / "out" / "stacks" / f"{seat}.txt").read_text() for seat in ("s0", "s1"))


def test_unmet_expectation_is_incomplete_and_says_what_there_is(address: str, tmp_path: Path) -> None:
    ended, report = judged(tmp_path, config(seats={"expect": {"gpus": 1}, "wait_s": 0.5}))
    assert ended == ("INCOMPLETE", 4)
    assert "expected at least 1 gpus, found 0" in report["run"]["reasons"]
    assert any("the cluster has 2 nodes" in reason for reason in report["run"]["reasons"])


def test_busy_cluster_is_incomplete_after_the_wait(address: str, tmp_path: Path) -> None:
    import ray

    group = ray.util.placement_group([{"CPU": 1}])
    assert group.wait(30)
    try:
        ended, report = judged(tmp_path, config(seats={"wait_s": 0.5}))
    finally:
        ray.util.remove_placement_group(group)
    assert ended == ("INCOMPLETE", 4)
    assert any("not free within wait_s = 0.5" in reason for reason in report["run"]["reasons"])


@pytest.mark.parametrize(
    ("variables", "says"),
    [({"RAY_AUTH_TOKEN": "x" * 64}, "refuses the token"), ({"RAY_AUTH_MODE": "disabled"}, "wants a token")],
)
def test_wrong_or_missing_token_is_told_at_once(address: str, variables: dict[str, str], says: str) -> None:
    probe(address)
    with setting(variables), pytest.raises(UsageError, match=says):
        probe(address)


def test_address_without_a_ray_head_is_told_at_once() -> None:
    with pytest.raises(UsageError, match="no Ray cluster answers there"):
        probe("127.0.0.1:1")
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(UsageError, match="something answers there that is no Ray head"):
            probe(f"127.0.0.1:{server.server_port}")
        server.shutdown()


@pytest.mark.parametrize(
    ("number", "code", "last"),
    [
        (None, 0, "RIG verdict=PASS exit=0"),
        (signal.SIGINT, 130, "RIG verdict=INCOMPLETE exit=130"),
        (signal.SIGKILL, -9, ""),
    ],
)
def test_own_cluster_leaves_nothing_behind(number: signal.Signals | None, code: int, last: str, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp") as temp:
        environment = os.environ | {"TMPDIR": temp, "HOME": str(tmp_path)}
        command = [sys.executable, "-m", "rig", "run", "smoke", "--out", str(tmp_path / "out")]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, cwd=ROOT, env=environment, **pipes) as process:  # type: ignore[call-overload]
            for line in process.stderr:
                if number and "controls" in line:
                    process.send_signal(number)
                    break
            out, _ = process.communicate(timeout=120)
        assert process.returncode == code
        assert (out.splitlines() or [""])[-1].startswith(last)
        deadline = time.monotonic() + 15
        while (os.listdir(temp) or holders(temp)) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert (os.listdir(temp), holders(temp)) == ([], [])
        assert not (tmp_path / ".ray").exists()
        assert (tmp_path / "out" / "records.jsonl").stat().st_size > 0


def holders(folder: str) -> list[str]:
    """Processes that have a file below `folder` open."""
    found = []
    for links in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            if any(os.readlink(link).startswith(f"{folder}/") for link in links.iterdir()):
                found.append(links.parent.name)
    return found
