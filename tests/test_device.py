"""On a real GPU: readers behind a stall, and faults that show every time."""

import pytest
import torch
from cells import spec
from targets.faults import PLAIN_GPU, planted

from rig.controls import CONTROLS, check, defaults
from rig.worker import Worker

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
CUDA_CELLS = [(c, backend) for c in CONTROLS for backend in ("cuda_uva", "cuda_copy") if backend in c.backends]


def run(scenario, target, **params):
    asked = {
        "id": "a",
        "scenario": scenario,
        "target": target["name"],
        "backend": "cuda_uva",
        "mode": "verify",
        "params": defaults(scenario) | {"num_steps": 60} | params,
        "seat": "s0",
        "seed": 3,
        "timeout_s": 60.0,
        "limits": {},
    }
    return list(Worker(seat="s0", device="cuda:0", seed=7).run(asked, target))[-1]


@pytest.mark.parametrize(("control", "backend"), CUDA_CELLS, ids=lambda x: getattr(x, "fault", x))
def test_a_control_is_caught_by_corruption_on_the_device(control, backend):
    for _ in range(3):
        record = check(control, backend=backend, device="cuda:0", seat="s0")
        assert record["caught"], record["detail"]


def test_a_stalled_reader_sees_what_is_written_after_its_launch():
    from rig.device import Stalled

    device = torch.device("cuda", 0)
    readers = Stalled(device, stall_us=20_000)
    host = torch.zeros(1000, dtype=torch.int32, pin_memory=True)
    alias = torch.as_tensor(_Array(host), device=device).view(torch.int32)
    ticket = readers.launch(readers.hold(alias), 10, stream="main")
    host.fill_(7)
    assert ticket.wait().view("int32").tolist() == [7] * 10


@pytest.mark.parametrize("scenario", ["slot_reuse", "growth", "ragged_writes", "fused_apply"])
def test_a_correct_module_passes(scenario):
    body = run(scenario, spec("plain", PLAIN_GPU))
    assert (body["verdict"], body["reason"]) == ("PASS", "")
    assert body["checked_words"]


@pytest.mark.parametrize(
    ("fault", "scenario", "kind"),
    [
        ("one_step_early", "slot_reuse", "slot_reuse"),
        ("growth_frees_all", "growth", "use_after_free"),
        ("snapshot_alias", "slot_reuse", "stale_alias"),
    ],
)
def test_a_faulty_module_fails(fault, scenario, kind):
    body = run(scenario, spec("plain", planted(fault, PLAIN_GPU)))
    assert body["verdict"] == "FAIL"
    assert kind in body["findings"]


@pytest.mark.parametrize("backend", ["sim", "cpu"])
def test_a_gpu_seat_does_not_judge_foreign_targets_on_the_host(backend):
    worker = Worker(seat="s0", device="cuda:0", seed=7)
    assert "judges foreign targets on CPU seats" in worker.unsuited(backend, spec("plain", PLAIN_GPU))
    assert worker.unsuited(backend, spec("staging")) is None


class _Array:
    def __init__(self, host):
        flat = {"shape": (host.nbytes,), "typestr": "|u1", "data": (host.data_ptr(), False), "version": 3}
        self.__cuda_array_interface__ = flat
