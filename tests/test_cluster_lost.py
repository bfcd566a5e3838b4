"""On a real cluster: a killed driver's records are collected, a lost seat's work runs once more, a hang is ended."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rig import dispatch, journal
from rig.__main__ import main
from rig.cluster import open_cluster
from rig.config import RunConfig
from rig.records import Record, RecordLog, read
from rig.run import Options, run

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray"), pytest.mark.filterwarnings("default")]
ROOT = Path(__file__).resolve().parent.parent
# The model, with one publish that is wrong or none, and one pool depth at which something happens to the process.
TARGET = """\
import ctypes, os, signal, time
import torch
from rig.targets import model
names = model.load(fault=None, device=torch.device("cpu"))
globals().update({name: getattr(names, name) for name in dir(names) if name[0] != "_"})
_pool, _count = names.UvaBufferPool, [0]
def first():
    try: os.close(os.open("FLAG", os.O_CREAT | os.O_EXCL))
    except FileExistsError: return False
    return True
class UvaBufferPool:
    def __init__(self, size, dtype, depth=None, **more):
        self._one, self._depth = _pool(size, dtype, depth, **more), depth
    def __getattr__(self, name):
        return getattr(self._one, name)
    def copy_to_uva(self, *args, **more):
        _count[0] += 1
        if self._depth == 3 and _count[0] == 6:
            BODY
        handle = self._one.copy_to_uva(*args, **more)
        return handle + 1 if IS_WRONG and self._depth == 3 and _count[0] == 2 else handle
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster of two CPU nodes that this process is connected to, and drivers of their own may be."""
    with open_cluster(None, local_nodes=2):
        import ray

        yield ray.get_runtime_context().gcs_address


def spools() -> list[Path]:
    return sorted(Path(os.environ["RAY_TMPDIR"]).glob("rig-spool-*"))


def config(folder: Path, body: str, *, is_wrong: bool = False, timeout_s: float = 30, **more: Any) -> dict[str, Any]:
    text = TARGET.replace("BODY", body).replace("IS_WRONG", repr(is_wrong)).replace("FLAG", str(folder / "flag"))
    (folder / "mine.py").write_text(text)
    entry: dict[str, Any] = {"scenario": "slot_reuse", "sweep": {"depth": [2, 3]}, "timeout_s": timeout_s}
    entry["params"] = {"num_steps": 8, "rows": 4, "in_flight": 1}
    base: dict[str, Any] = {"version": 1, "name": "t", "targets": [str(folder / "mine.py")], "backends": ["cpu"]}
    return base | {"controls": False, "shrink_s": 0.0, "runs": [entry], "reports": ["json"]} | more


def judged(folder: Path, told: dict[str, Any]) -> tuple[tuple[str, int], dict[str, Any]]:
    (entry,) = told["runs"]
    entry = entry | {"sweep": {"depth": tuple(entry["sweep"]["depth"])}}
    tuples = {key: tuple(told[key]) for key in ("targets", "backends", "reports")}
    ended = run(RunConfig.model_validate(told | tuples | {"runs": (entry,)}), Options(out=str(folder / "out")))
    return ended, json.loads((folder / "out" / "report.json").read_text())


def state(pid: int) -> str:
    """The kernel's letter for a process, "" if there is none."""
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def attempts(report: dict[str, Any]) -> list[list[tuple[int, str]]]:
    return [[(a["attempt"], a["verdict"]) for a in one.get("attempts", [])] for one in report["assignments"]]


def test_killed_drivers_records_are_collected_from_the_nodes(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The finding waits in the worker's batch while the target sleeps: the driver never gets it.
    told = config(tmp_path, "time.sleep(600)", is_wrong=True, seats={"kind": "cpu"})
    (tmp_path / "c.yaml").write_text(json.dumps(told))
    out = tmp_path / "out"
    command = [sys.executable, "-m", "rig", "run", str(tmp_path / "c.yaml"), "--out", str(out), "--address", address]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as driver:
        deadline = time.monotonic() + 90
        while sum("depth=3" in path.read_text() for path in spools()) < 2:
            assert driver.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        driver.kill()
    before = read(out)
    assert not any("depth=3" in str(r.get("assignment")) for r in before[1:])
    with pytest.raises(SystemExit) as end:
        main(["collect", str(out), "--address", address])
    said = capsys.readouterr().out
    assert (end.value.code, "2 spools on 2 nodes" in said) == (1, True)
    report = json.loads((out / "report.json").read_text())
    assert [f["kind"] for f in report["findings"] if "depth=3" in f["assignment"]] == ["corruption"] * 2
    assert (
        sum("were collected from rig-spool" in r or "were collected from /" in r for r in report["run"]["reasons"]) == 2
    )
    assert not (out / "spools").exists()
    for path in spools():  # the nodes keep theirs
        path.unlink()


class FullLog(RecordLog):
    """Its disk is full when the first assignment's record comes."""

    def append(self, batch: Iterable[Record]) -> list[Record]:
        batch = list(batch)
        if any(record["type"] == "assignment" for record in batch):
            self._onto("/dev/full")
        try:
            return super().append(batch)
        except OSError:
            self._onto("/dev/null")  # so that it can be closed
            raise

    def _onto(self, device: str) -> None:
        with open(device, "wb") as file:
            os.dup2(file.fileno(), self._file.fileno())


def test_what_a_full_disk_of_the_driver_refused_is_collected(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(journal, "RecordLog", FullLog)
        ended, _ = judged(tmp_path, config(tmp_path, "pass"))
    assert ended == ("INCOMPLETE", 4)
    assert {record["type"] for record in read(tmp_path / "out")} == {"run", "seat"}
    with pytest.raises(SystemExit):
        main(["collect", str(tmp_path / "out"), "--address", address])
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["verdict"] == "INCOMPLETE"
    assert report["verdict_counts"]["PASS"] >= 1  # a seat that had not begun when the disk was full has nothing
    for path in spools():
        path.unlink()


def test_run_that_ends_well_leaves_no_spool(address: str, tmp_path: Path) -> None:
    ended, _ = judged(tmp_path, config(tmp_path, "pass"))
    assert (ended, spools()) == (("PASS", 0), [])


@pytest.mark.parametrize("infra", [0, 1])
def test_lost_seats_work_runs_once_more_on_the_live_one(address: str, tmp_path: Path, infra: int) -> None:
    body = "if first(): os.kill(os.getpid(), signal.SIGKILL)"
    ended, report = judged(tmp_path, config(tmp_path, body, retry={"infra": infra}))
    assert ended == (("PASS", 0) if infra else ("INCOMPLETE", 4))
    again = [told for told in attempts(report) if told]
    assert again == [[(1, "INCOMPLETE"), (2, "PASS")]] * infra
    assert sorted(seat["verdict"] for seat in report["seats"]) == ["INCOMPLETE", "PASS"]
    for path in spools():
        path.unlink()


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("time.sleep(600)", "; in copy_to_uva"),
        ("ctypes.PyDLL(None).sleep(600)", ", and says nothing now; in copy_to_uva"),
    ],
)
def test_hang_names_stage_and_step_of_every_seat_and_is_ended(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, word: str
) -> None:
    from rig import cluster_crew

    monkeypatch.setattr(dispatch, "GRACE_S", 0.5)
    monkeypatch.setattr(cluster_crew, "_BEAT_S", 0.1)
    ended, _ = judged(tmp_path, config(tmp_path, f"if first(): time.sleep(1); {body}", timeout_s=2.5))
    assert ended == ("HANG", 5)
    (lost,) = (r for r in read(tmp_path / "out") if r["type"] == "lost")
    assert (lost["verdict"], lost["ended"]["is_gone"]) == ("HANG", True)
    assert state(lost["ended"]["pid"]) in ("", "Z")  # gone, or not reaped yet
    where = (tmp_path / "out" / "stacks" / "where.txt").read_text().splitlines()
    hung, idle = sorted(where[:2], key=lambda line: line.split()[0] != lost["seat"])
    assert re.search(rf"depth=3.*  verify step [1-9]{re.escape(word)} \(mine.py:", hung), hung
    (other,) = {"s0", "s1"} - {lost["seat"]}
    assert idle == f"{other}  idle"
    assert where[3:] == [
        f"the driver waits for {lost['seat']}",
        f"{other} waits for the driver",
        "no seat waits for another one",
    ]
    assert "mine.py" in (tmp_path / "out" / "stacks" / f"{lost['seat']}.txt").read_text()
    for path in spools():
        path.unlink()
