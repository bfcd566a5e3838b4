"""Controls: caught on every backend they name, by the kind they name, beside a clean twin."""

import dataclasses

import pytest

from rig import controls, registry
from rig.controls import CONTROLS, check

CPU_CELLS = [(c, backend) for c in CONTROLS for backend in ("sim", "cpu") if backend in c.backends]


@pytest.mark.parametrize(("control", "backend"), CPU_CELLS, ids=lambda x: getattr(x, "fault", x))
def test_a_control_is_caught(control, backend):
    record = check(control, backend=backend, device="cpu", seat="s3")
    assert record["caught"], record["detail"]
    assert record | {"detail": ""} == {
        "name": control.fault,
        "seat": "s3",
        "backend": backend,
        "expected_kind": control.kind,
        "caught": True,
        "detail": "",
    }


def test_a_control_is_caught_whatever_the_seat():
    for seat in ("s0", "s1", "s77"):
        assert all(record["caught"] for record in controls.check_all(["sim", "cpu"], device="cpu", seat=seat))


def test_every_fault_has_a_control_and_every_backend_has_at_least_four():
    faults = set(registry.load("targets", "faulty").FAULTS)
    assert {control.fault for control in CONTROLS} == faults
    for backend in ("sim", "cpu", "cuda_uva", "cuda_copy"):
        assert sum(backend in control.backends for control in CONTROLS) >= 4
    for control in CONTROLS:
        if control.kind in ("slot_reuse", "use_after_free"):
            assert {"sim", "cuda_uva"} <= set(control.backends)
            assert "cpu" not in control.backends


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        ({"kind": "spill"}, "not caught: slot_reuse: "),
        ({"params": {"in_flight": 1, "num_steps": 5}}, "not caught: no finding in "),
        ({"params": {"num_steps": 5, "in_flight": 5}}, "the clean twin is not clean: beyond contract"),
    ],
)
def test_a_control_that_is_not_caught_says_what_was_seen(change, detail):
    control = dataclasses.replace(CONTROLS[0], **change)
    record = check(control, backend="sim", device="cpu", seat="s0")
    assert not record["caught"]
    assert record["detail"].startswith(detail)


def test_an_exception_does_not_count_as_caught(monkeypatch):
    from staging.pool import UvaBufferPool

    def broken(self, x):
        raise RuntimeError("no")

    monkeypatch.setattr(UvaBufferPool, "copy_to_uva", broken)
    record = check(CONTROLS[0], backend="sim", device="cpu", seat="s0")
    assert not record["caught"]
    assert "exception: publish `pool0` raised RuntimeError: no" in record["detail"]


def test_an_unclean_twin_spoils_the_control(monkeypatch):
    model = registry.load("targets", "model")

    def zeros(self, x):
        return self.fresh(x, self.dtype) * 0

    monkeypatch.setattr(model.UvaBufferPool, "copy_to_uva", zeros)
    record = check(CONTROLS[0], backend="sim", device="cpu", seat="s0")
    assert not record["caught"]
    assert record["detail"].startswith("the clean twin is not clean: stale_alias: ")
