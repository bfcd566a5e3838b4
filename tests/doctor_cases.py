"""Facts of two machines that are well, and what can be amiss on them, for test_doctor.py."""

import copy

from rig.machine import MEMORY_KINDS

UUID = "GPU-11111111-2222-3333-4444-555555555555"
NO_CUDA = "this torch was built without CUDA"
HUNG, CRASHED = ("hang", "no answer within 8 s"), ("crash", "its process crashed with SIGSEGV")
SIZE = 1 << 30


def proved(key, names, device, state, reason):
    return [{key: name, "device": device, "state": state, "reason": reason} for name in names]


LAPTOP = {
    "machine": {
        **{
            "os": "Debian",
            "kernel": "6.1",
            "architecture": "x86_64",
            "cpus": 2,
            "numa_nodes": 1,
            "memory_bytes": 8 * SIZE,
        },
        **{
            "memory_limit_bytes": None,
            "memlock_bytes": 8 << 20,
            "shm_bytes": SIZE,
            "shm_free_bytes": SIZE,
            "wsl": None,
        },
        **{"container": None, "vm": None, "gpu_nodes": [], "cuda_visible_devices": None},
    },
    "software": {
        **{"python": "3.12.1", "torch": "2.13.0+cpu", "numpy": "2.1.0", "triton": "3.6.0", "ray": "2.60.1"},
        **{"cuda": None, "hip": None},
    },
    "driver": {"state": "none", "reason": "no nvidia-smi", "version": None, "confidential_computing": None},
    "gpus": [],
    "torch": {"state": "ok", "reason": ""},
    "backends": [
        *proved("name", ["cpu", "sim"], "", "ok", "fine"),
        *proved("name", ["cuda_copy", "cuda_uva"], "", "failed", NO_CUDA),
    ],
    "memory": proved("kind", MEMORY_KINDS, "", "not possible", "torch sees no CUDA device here"),
}
GPU = {
    **{"index": "0", "uuid": UUID, "name": "NVIDIA H200", "memory_bytes": 140 * SIZE, "compute_capability": "9.0"},
    **{"driver": "580.1", "mig": "disabled", "device": "cuda:0"},
}
SERVER = LAPTOP | {
    "machine": LAPTOP["machine"] | {"gpu_nodes": ["nvidia0"], "numa_nodes": 2, "memlock_bytes": -1},
    "software": LAPTOP["software"] | {"torch": "2.13.0", "cuda": "13.0"},
    "driver": {"state": "ok", "reason": "", "version": "580.1", "confidential_computing": "off"},
    "gpus": [GPU],
    "backends": [
        *proved("name", ["cpu", "sim"], "", "ok", "fine"),
        *proved("name", ["cuda_copy", "cuda_uva"], "gpu 0", "ok", "read back"),
    ],
    "memory": [
        *proved("kind", ["pinned", "registered"], "gpu 0", "live", "read back"),
        *proved("kind", ["unpinned"], "gpu 0", "refused", "the pointer is not registered"),
    ],
}
UNSEEN = GPU | {"device": None}


def changed(facts, changes):
    """Facts with "a.b" set; a backend or a kind of memory is set by its name, to (state, reason)."""
    facts = copy.deepcopy(facts)
    for path, value in changes.items():
        where, _, key = path.partition(".")
        if where in ("backends", "memory"):
            (row,) = [row for row in facts[where] if key in row.values()]
            row["state"], row["reason"] = value
        elif key:
            facts[where][key] = value
        else:
            facts[where] = value
    return facts


NOT_PINNED = ("failed", "the host memory is not pinned: the system grants no page-locked memory")
STALE = "the device read [3, 3] where the host wrote [7, 11] after mapping"
OFF = ("refused", "operation not supported (801)")
WSL, LOCKED, NAMED = {"machine.wsl": "WSL2"}, {"machine.memlock_bytes": 8 << 20}, {"machine.cuda_visible_devices": "1"}
S, L = SERVER, LAPTOP

# Facts, what is amiss, "what it says -> what to do", and where it is not clear what a clean twin is, that one.
PROBLEMS = [
    (
        L,
        {"torch.state": "crash", "torch.reason": CRASHED[1]},
        "torch could not be asked: its pro -> install torch again",
    ),
    (L, {"torch.state": "hang", "torch.reason": HUNG[1]}, "torch did not say what GPUs -> rig doctor --timeout 60"),
    (L, {"backends.cpu": ("failed", "wrote 7, read 0")}, "cpu does not work: wrote 7, read 0 -> it needs no GPU"),
    (L, {"backends.sim": HUNG}, "backend sim does not work: no answer -> rig.prove /dev/stdout sim"),
    (L, {"machine.gpu_nodes": ["nvidia0"]}, "nvidia0 in /dev, but no nvidia-smi -> install the NVIDIA driver"),
    (L, {"driver.state": "failed", "driver.reason": "exit 9"}, "nvidia-smi does not work: exit 9 -> load the driver"),
    (S, {"driver.state": "hang", "driver.reason": HUNG[1]}, "driver does not answer: no answer -> Xid"),
    (S, {"gpus": [UNSEEN], "software.cuda": None}, "is a CPU build -> install a CUDA build", {"software.cuda": None}),
    (S, {"gpus": [UNSEEN]}, "not see 1 GPU (NVIDIA H200): driver 580.1, torch for CUDA 13.0 -> driver for CUDA 13.0"),
    (S, {"gpus": [GPU, UNSEEN]}, "torch does not see 1 GPU -> kernel log", {"gpus": [GPU, GPU]}),
    (S, {"backends.cuda_uva": HUNG}, "cuda_uva failed on gpu 0: no answer within 8 s -> --timeout 60"),
    (
        S,
        {"backends.cuda_copy": CRASHED},
        "cuda_copy failed on gpu 0: its process -> -m rig.prove /dev/stdout cuda_copy",
    ),
    (S, {"backends.cuda_uva": ("failed", "CUDA out of memory")}, "out of memory -> free the GPU's memory"),
    (S, {"backends.cuda_uva": ("failed", STALE), "memory.pinned": ("stale", STALE)}, "[3, 3] -> (confidential"),
    (S, {"backends.cuda_uva": NOT_PINNED, "memory.pinned": OFF, **WSL}, "not pinned -> WSL pins no memory here", WSL),
    (S, {"backends.cuda_uva": NOT_PINNED, **LOCKED}, "not pinned -> is 8 MiB (ulimit -l unlimited)", LOCKED),
    (S, {"backends.cuda_uva": NOT_PINNED}, "not pinned -> whether the VM or container may pin memory"),
    (S, {"backends.cuda_uva": ("failed", "odd")}, "cuda_uva failed on gpu 0: odd -> nvidia-smi"),
    (S, {"memory.pinned": ("stale", STALE)}, "pinned memory on gpu 0: stale: the device read -> not live here"),
    (S, {"memory.registered": CRASHED}, "registered memory on gpu 0: crash -> rig.prove /dev/stdout registered"),
    (S, {"software.triton": None}, "Triton is not installed -> pip install triton"),
    (L, {"software.ray": None}, "Ray is not installed -> rig run --local"),
    (L, {"software.ray": "2.6.0"}, "Ray 2.6.0 is installed -> ray[default]==2.60.*", {"software.ray": "2.60.9"}),
]
NOTES = [
    (S, {"gpus": [UNSEEN], **NAMED}, "CUDA_VISIBLE_DEVICES is '1' -> unset it", NAMED),
    (S, {"memory.registered": ("stale", STALE)}, "registered memory on gpu 0: stale -> map no registered memory here"),
    (S, {"memory.unpinned": HUNG}, "unpinned memory on gpu 0: hang -> map ordinary memory"),
    (S, {"memory.unpinned": ("stale", STALE)}, "unpinned -> pin it instead", {"memory.unpinned": ("live", "x")}),
    (S, {"memory.registered": OFF}, "(801) -> pin_memory=True"),
    (S, {"driver.confidential_computing": "on"}, "confidential computing is on -> trust only what is proved"),
    (S, {"gpus": [GPU | {"mig": "enabled"}]}, "MIG is on for 1 GPU (NVIDIA H200) -> MIG-"),
    (L, {"software.triton": None}, "Triton is not installed -> pip install triton"),
    (L, {"machine.shm_bytes": 64 << 20}, "/dev/shm has 64 MiB -> --shm-size", {"machine.shm_bytes": 256 << 20}),
]
