"""From the facts that `rig.examine` collects to what is wrong and what to do about it; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

SCHEMA = 1
EXIT_MISSING = 4
RAY = "2.60"  # the series that the nodes of a cluster have in common
_SHM_MIN = 256 << 20  # Ray's object store lies there; a container has 64 MiB unless it is told otherwise
_MEMLOCK_MIN = 64 << 20
Facts = Mapping[str, Any]


class Advice(NamedTuple):
    """One thing worth knowing, and what to set or do; `level` is "problem", or "note" where nothing is amiss."""

    level: str
    what: str
    do: str


def report(facts: Facts) -> dict[str, Any]:
    """The facts with what follows from them: schema, facts, findings, exit_code."""
    findings = list(diagnose(facts))
    works = any(backend["state"] == "ok" and backend["name"] != "sim" for backend in facts["backends"])
    is_well = works and all(finding.level != "problem" for finding in findings)
    told = {"findings": [finding._asdict() for finding in findings], "exit_code": 0 if is_well else EXIT_MISSING}
    return {"schema": SCHEMA} | dict(facts) | told


def diagnose(facts: Facts) -> Iterator[Advice]:
    """Problems first, each once, whatever it shows in."""
    found = [advice for rule in _RULES for advice in rule(facts)]
    yield from sorted(found, key=lambda advice: advice.level != "problem")


def _torch(facts: Facts) -> Iterator[Advice]:
    state, reason = facts["torch"]["state"], facts["torch"]["reason"]
    if state == "hang":
        yield Advice(
            "problem", f"torch did not say what GPUs it sees: {reason}", _remedy(facts, "torch", state, reason)
        )
    elif state != "ok":
        do = 'install torch again; `python -c "import torch"` may tell more'
        yield Advice("problem", f"torch could not be asked: {reason}", do)


def _host_backends(facts: Facts) -> Iterator[Advice]:
    for one in facts["backends"]:
        is_same = one["reason"] == facts["torch"]["reason"]  # torch itself is what fails
        if not one["name"].startswith("cuda") and one["state"] != "ok" and not is_same:
            what = f"backend {one['name']} does not work: {one['reason']}"
            yield Advice("problem", what, f"it needs no GPU: see `python -m rig.prove /dev/stdout {one['name']}`")


def _driver(facts: Facts) -> Iterator[Advice]:
    """Whether there is a GPU, and a driver that speaks for it."""
    host, driver = facts["machine"], facts["driver"]
    if driver["state"] == "hang":
        do = "look for Xid errors in the kernel log; then reset the GPU or reboot"
        yield Advice("problem", f"the NVIDIA driver does not answer: {driver['reason']}", do)
    elif _is_gpu_seen(facts) or driver["state"] == "ok":
        return
    elif driver["state"] != "none":
        do = "install or load the driver; a container gets it by --gpus all"
        yield Advice("problem", f"nvidia-smi does not work: {driver['reason']}", do)
    elif host["gpu_nodes"]:
        what = f"{_few(host['gpu_nodes'])} in /dev, but no nvidia-smi, and torch sees no GPU"
        yield Advice("problem", what, "install the NVIDIA driver; a container gets it by --gpus all")
    else:
        start = "start the container with its GPUs (--gpus all)" if host["container"] else "use a machine with one"
        yield Advice(
            "note", "no NVIDIA GPU here, which is fine: sim and cpu judge on any machine", f"for cuda_*, {start}"
        )


def _sight(facts: Facts) -> Iterator[Advice]:
    """Whether torch sees the GPUs that the driver lists."""
    software, hidden, listed = facts["software"], facts["machine"]["cuda_visible_devices"], facts["gpus"]
    unseen = [gpu for gpu in listed if not gpu["device"] and gpu["mig"] != "enabled"]
    if not unseen or facts["torch"]["state"] != "ok":
        return
    what = f"torch does not see {_count(unseen)}"
    if hidden is not None:
        yield Advice("note", f"{what}: CUDA_VISIBLE_DEVICES is {hidden!r}", "unset it to use all")
    elif software["cuda"] is None and software["hip"] is None:
        yield Advice("problem", f"{what}: torch {software['torch']} is a CPU build", "install a CUDA build of torch")
    elif len(unseen) < len(listed):
        yield Advice("problem", what, "see what `nvidia-smi` and the kernel log say of that GPU")
    else:
        do = f"install a driver for CUDA {software['cuda']}, or a torch for the CUDA that `nvidia-smi` shows"
        yield Advice("problem", f"{what}: driver {unseen[0]['driver']}, torch for CUDA {software['cuda']}", do)


def _cuda_backends(facts: Facts) -> Iterator[Advice]:
    """CUDA backends that failed where torch sees a GPU; those with one reason together."""
    if not _is_gpu_seen(facts):
        return
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in facts["backends"]:
        if one["name"].startswith("cuda") and one["state"] not in ("ok", "untried"):
            groups.setdefault((one["state"], one["reason"]), []).append(one)
    for (state, reason), failed in groups.items():
        names, devices = (list(dict.fromkeys(one[key] for one in failed if one[key])) for key in ("name", "device"))
        what = f"{' and '.join(names)} failed on {_few(devices) or 'the GPU'}: {reason}"
        yield Advice("problem", what, _remedy(facts, names[0], state, reason))


def _remedy(facts: Facts, name: str, state: str, reason: str) -> str:
    """What to set or do about a CUDA backend, or a kind of memory, that failed for this reason."""
    host, text = facts["machine"], reason.lower()
    if state == "hang":
        return "try `rig doctor --timeout 60`; if it still hangs, look for Xid errors in the kernel log"
    if state == "crash":
        return f"`python -X faulthandler -m rig.prove /dev/stdout {name}` shows where; install torch for this driver"
    if "out of memory" in text:
        return "free the GPU's memory: `nvidia-smi` shows who has it"
    if "the device read" in text:
        return "mapped memory is not live here (confidential computing?): use cuda_copy, and map nothing"
    if "pinned" in text or "page-locked" in text or "unified addressing" in text or "operation not supported" in text:
        if host["wsl"]:
            return "WSL pins no memory here: update WSL and the Windows driver; until then use --backend cuda_copy"
        if 0 <= (host["memlock_bytes"] or 0) < _MEMLOCK_MIN:
            return f"raise the limit of locked memory, which is {_mib(host['memlock_bytes'])} (ulimit -l unlimited)"
        return "use --backend cuda_copy, and see whether the VM or container may pin memory"
    return "see the reason; `nvidia-smi` shows the state of the GPU"


def _memory(facts: Facts) -> Iterator[Advice]:
    """Memory that a device does not see as it should, without what the failure of cuda_uva says already."""
    broken = {one["device"] for one in facts["backends"] if one["name"] == "cuda_uva" and one["state"] != "ok"}
    for one in facts["memory"] if _is_gpu_seen(facts) else ():
        kind, state, reason, where = one["kind"], one["state"], one["reason"], one["device"] or "the GPU"
        what = f"{kind} memory on {where}: {state}: {reason}"
        if kind == "pinned":
            if state not in ("live", "untried") and one["device"] not in broken:
                yield Advice("problem", what, _remedy(facts, kind, state, reason))
        elif kind == "unpinned" and state in ("hang", "crash", "failed"):
            yield Advice("note", what, "let nothing map ordinary memory here; ours never does")
        elif state in ("hang", "crash", "failed"):
            yield Advice("problem", what, _remedy(facts, kind, state, reason))
        elif state == "stale":
            yield Advice("note", what, f"map no {kind} memory here, a device sees no later write to it: pin it instead")
        elif state == "refused" and kind == "registered":
            yield Advice("note", what, "let torch pin memory (pin_memory=True) instead")


def _software(facts: Facts) -> Iterator[Advice]:
    ray, triton = facts["software"]["ray"], facts["software"]["triton"]
    if ray is None:
        do = f"pip install 'ray[default]=={RAY}.*'; without it only `rig run --local` works"
        yield Advice("problem", "Ray is not installed", do)
    elif not ray.startswith(f"{RAY}."):
        what = f"Ray {ray} is installed; a cluster's nodes need {RAY}"
        yield Advice("problem", what, f"pip install 'ray[default]=={RAY}.*'")
    if triton is None:
        what = "Triton is not installed: staged writes are applied by torch, and targets with kernels cannot be judged"
        yield Advice("problem" if _is_gpu_seen(facts) else "note", what, "pip install triton")


def _surroundings(facts: Facts) -> Iterator[Advice]:
    host, driver = facts["machine"], facts["driver"]
    if host["shm_bytes"] is not None and host["shm_bytes"] < _SHM_MIN:
        what = f"/dev/shm has {_mib(host['shm_bytes'])}, and Ray keeps its objects there"
        yield Advice("note", what, "give the container more: --shm-size 1g")
    if driver["confidential_computing"] == "on":
        what = "confidential computing is on: pinned memory may be a copy, whatever CUDA says of it"
        yield Advice("note", what, "trust only what is proved above: a backend that is ok, memory that is live")
    divided = [gpu for gpu in facts["gpus"] if gpu["mig"] == "enabled"]
    if divided:
        do = "name one by CUDA_VISIBLE_DEVICES=MIG-...: only the first of each GPU was tried"
        yield Advice("note", f"MIG is on for {_count(divided)}", do)


_RULES = (_torch, _host_backends, _driver, _sight, _cuda_backends, _memory, _software, _surroundings)


def _is_gpu_seen(facts: Facts) -> bool:
    return any(gpu["device"] for gpu in facts["gpus"])


def _count(gpus: Sequence[Any]) -> str:
    return f"{len(gpus)} GPU{'s' if len(gpus) > 1 else ''} ({gpus[0]['name']})"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):,.0f} MiB"
