"""How `rig doctor` comes by its facts: processes with a time limit, the driver's table, mappings, system files."""

import os
import sys
import time
from pathlib import Path

import pytest
import torch
from doctor_cases import GPU, LAPTOP, SIZE, UUID

from rig import gpus
from rig.doctor import report
from rig.examine import examine, parse_gpus
from rig.machine import machine
from rig.mapping import liveness, observed
from rig.provers import Answer, Process, Prover, Trouble, environment

ROOT = Path(__file__).resolve().parent.parent

# What runs in a process of its own: here a program that answers, hangs or crashes as its proofs are named.
PROOFS = """
import json, os, signal, sys, time
path, *proofs = sys.argv[1:]
if "mute" in proofs: sys.exit(3)
with open(path, "a") as file:
    for proof in proofs:
        print(json.dumps([proof, None]), file=file, flush=True)
        if proof == "hang": time.sleep(600)
        if proof == "crash": os.kill(os.getpid(), signal.SIGSEGV)
        if proof == "exit": os._exit(print("no such library", file=sys.stderr) or 3)
        print(json.dumps([proof, {"state": "ok", "reason": proof}]), file=file, flush=True)
        if proof == "late": os.kill(os.getpid(), signal.SIGKILL)
"""


def answers(tmp_path, *proofs, limit_s=20.0):
    prover = Prover(proofs, folder=tmp_path, name="-".join(proofs), command=[sys.executable, "-S", "-c", PROOFS])
    told = prover.answers(time.monotonic() + limit_s)
    assert [answer.proof for answer in told] == list(proofs), "an answer for every proof, in order"
    return [(answer.told["state"], answer.told["reason"]) for answer in told]


def test_proofs_that_answer_are_believed(tmp_path):
    assert answers(tmp_path, "a", "b") == [("ok", "a"), ("ok", "b")]


def test_a_proof_that_crashes_its_process_is_told_and_the_others_are_tried_in_a_new_one(tmp_path):
    crash, leave = ("crash", "its process crashed with SIGSEGV"), ("failed", "exit 3: no such library")
    assert answers(tmp_path, "a", "crash", "b", "exit", "c") == [("ok", "a"), crash, ("ok", "b"), leave, ("ok", "c")]
    assert answers(tmp_path, "a", "late") == [("ok", "a"), ("ok", "late")], "both answers are there"


def test_a_proof_that_hangs_is_ended_and_what_comes_after_it_is_untried(tmp_path):
    told = answers(tmp_path, "a", "hang", "b", limit_s=0.5)
    assert told == [("ok", "a"), ("hang", told[1][1]), ("untried", f"not reached: {told[1][1]}")]
    assert told[1][1].startswith("no answer within ")


def test_a_process_that_cannot_even_begin_fails_all_its_proofs(tmp_path):
    assert {state for state, _ in answers(tmp_path, "a", "mute")} == {"failed"}


def test_a_program_that_cannot_be_started_is_an_answer(tmp_path):
    told = Process(["/no/such/program"], folder=tmp_path, name="p").end(time.monotonic() + 20)
    assert told == Trouble("failed", "/no/such/program does not start: No such file or directory")


def test_a_process_that_hangs_is_gone_afterwards(tmp_path):
    process = Process([sys.executable, "-S", "-c", "import time; time.sleep(600)"], folder=tmp_path, name="p")
    assert process.end(time.monotonic()) == Trouble("hang", "no answer within 0 s")
    with pytest.raises(ProcessLookupError):
        os.kill(process._popen.pid, 0)


def test_what_the_drivers_table_leaves_open_is_none():
    one, other = parse_gpus(
        f"0, {UUID}, NVIDIA H200, 143771, 9.0, 580.1, Disabled\n1, GPU-2, GH, [N/A], [N/A], 580.1, [N/A]\n"
    )
    assert one == {key: GPU[key] for key in one} | {"memory_bytes": 143771 << 20}
    assert (other["uuid"], other["memory_bytes"], other["compute_capability"], other["mig"]) == (
        "GPU-2",
        None,
        None,
        None,
    )
    assert parse_gpus("No devices were found\n") == []


@pytest.mark.parametrize(("map_it", "state"), [(lambda host: host, "live"), (lambda host: host.clone(), "stale")])
def test_a_mapping_is_live_only_if_writes_after_it_are_seen(map_it, state):
    host = torch.zeros(64, dtype=torch.int32)
    told = observed(host, lambda: map_it(host))
    assert told.state == state
    assert ("[3, 3]" in told.reason) == (state == "stale")


def test_memory_that_cannot_be_had_is_refused(monkeypatch):
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("no\nmemory")))
    assert liveness("pinned", torch.device("cpu")) == ("refused", "no")


def machine_of(tmp_path, files):
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return machine(tmp_path)


def test_a_bare_root_tells_little_and_breaks_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    told = machine_of(tmp_path, {})
    assert set(told) == set(LAPTOP["machine"])
    assert [told[key] for key in ("wsl", "container", "vm", "numa_nodes", "shm_bytes")] == [None] * 5
    assert told["gpu_nodes"] == []


def test_what_a_machine_runs_in_is_told_from_its_files(tmp_path, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    files = {
        "proc/sys/kernel/osrelease": "6.6.87.2-microsoft-standard-WSL2\n",
        "proc/1/cgroup": "0::/kubepods/besteffort/pod1\n",
        "proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu sse hypervisor\n",
        "sys/class/dmi/id/product_name": "Virtual Machine\n",
        "sys/devices/system/node/node0/x": "",
        "sys/devices/system/node/node1/x": "",
        "sys/fs/cgroup/memory.max": "1073741824\n",
        **{"dev/nvidia0": "", "dev/nvidiactl": "", "dev/dxg": ""},
        "etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04 LTS"\n',
    }
    told = machine_of(tmp_path, files)
    assert (told["wsl"], told["container"], told["vm"], told["numa_nodes"]) == (
        "WSL2",
        "kubepods",
        "Virtual Machine",
        2,
    )
    assert (told["gpu_nodes"], told["memory_limit_bytes"], told["os"]) == (["dxg", "nvidia0"], SIZE, "Ubuntu 24.04 LTS")


def test_a_driver_that_hangs_is_told_and_waited_for_no_longer_than_was_said(tmp_path, monkeypatch):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(gpus, "visible", lambda timeout_s: {})
    monkeypatch.setattr("rig.examine.Prover", lambda proofs, **_: _Sound(proofs))
    told = examine(limit_s=0.3)
    assert told["driver"]["state"] == "hang"
    assert any("the NVIDIA driver does not answer" in finding["what"] for finding in report(told)["findings"])


def test_each_gpu_that_the_driver_lists_is_tried_alone(tmp_path, monkeypatch):
    line = f"0, {UUID}, NVIDIA H200, 143771, 9.0, 580.1, Disabled"
    script = f'#!/bin/sh\ncase "$1" in --query*) echo "{line}";; *) echo "CC status: ON";; esac\n'
    (tmp_path / "nvidia-smi").write_text(script)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(gpus, "visible", lambda timeout_s: {"0": UUID, "1": "GPU-2"})
    made = []
    monkeypatch.setattr("rig.examine.Prover", lambda proofs, **more: made.append(more["env"]) or _Sound(proofs))
    told = examine(limit_s=20)
    assert [env.get("CUDA_VISIBLE_DEVICES") for env in made[1:]] == [UUID, "GPU-2"]
    assert [one["device"] for one in told["backends"] if one["name"] == "cuda_uva"] == ["gpu 0", "gpu 1"]
    assert [one["device"] for one in told["memory"] if one["kind"] == "pinned"] == ["gpu 0", "gpu 1"]
    assert (told["driver"]["version"], told["driver"]["confidential_computing"]) == ("580.1", "on")
    assert (told["gpus"][0]["device"], told["gpus"][1]["uuid"], told["gpus"][1]["index"]) == ("cuda:0", "GPU-9", None)


class _Sound:
    """Proofs that all come out well, without a process."""

    def __init__(self, proofs):
        self._proofs = proofs

    def answers(self, deadline):
        facts = {"gpu": "NVIDIA H200", "gpu_memory_bytes": SIZE, "compute_capability": "9.0"}
        devices = [{"device": "cuda:0", "uuid": UUID} | facts, {"device": "cuda:1", "uuid": "GPU-9"} | facts]
        told = {"state": "ok", "reason": "", "cuda": "13.0", "hip": None, "devices": devices}
        return [Answer(proof, told if proof == "torch" else {"state": "ok", "reason": ""}) for proof in self._proofs]


def test_children_find_the_packages_that_this_process_runs():
    assert environment(A="b")["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)
    assert environment(A="b")["A"] == "b"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_a_gpu_pinned_memory_is_live_and_ordinary_memory_is_not_mapped():
    told = report(examine(limit_s=60))
    states = {one["kind"]: one["state"] for one in told["memory"]}
    assert (states["pinned"], states["registered"]) == ("live", "live")
    assert told["exit_code"] == 0  # whatever becomes of unpinned memory: refused, live, or a read that never returns
    assert {one["state"] for one in told["backends"]} == {"ok"}
    assert told["gpus"][0]["device"] == "cuda:0"
