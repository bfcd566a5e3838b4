"""Any module or file with upstream's names is a target."""

import linecache
import os
import subprocess
import sys

import pytest
import torch
from cells import CPU, judged, performed, plain, spec
from targets.faults import PLAIN, planted

from rig import ops, values
from rig.loading import ImportFailedError, loaded
from rig.target import MissingNameError, Target, TargetRaisedError
from rig.traits import needs_gpu, takes_guard
from rig.words import Form, Mark, Payload


def recording(record):
    """A module whose constructors note their arguments."""

    class Noted:
        def __init__(self, *args, **keywords):
            record.append((type(self).__name__, args, keywords))

    names = ("UvaBuffer", "NonUvaBuffer", "UvaBufferPool", "UvaBackedTensor", "StagedWriteTensor", "FusedStagedWriter")
    return type("module", (), {name: type(name, (Noted,), {}) for name in names})


def test_constructors_get_size_dtype_and_depth_by_position_and_a_real_device():
    record = []
    target = Target(recording(record), device=CPU)
    for what in ("pool", "backed"):
        target.make(ops.Make(name=what, what=what, size=(4, 3), dtype="float32", depth=5))()
    target.make(ops.Make(name="s", what="staged", size=7, dtype="int64", depth=5, uva=True))()
    target.make(ops.Make(name="s2", what="staged", size=7))()
    target.make(ops.Make(name="f", what="fused", max_writes=9, depth=5))()
    target.make(ops.Make(name="u", what="uva", size=7))()
    assert record == [
        ("UvaBufferPool", ((4, 3), torch.float32, 5), {}),
        ("UvaBackedTensor", ((4, 3), torch.float32, 5), {}),
        ("StagedWriteTensor", (7, torch.int64, CPU, 5), {"uva_instead_of_gpu": True}),
        ("StagedWriteTensor", (7, torch.int32, CPU), {}),
        ("FusedStagedWriter", (CPU, 9, 5), {}),
        ("UvaBuffer", (7, torch.int32), {}),
    ]


def test_our_own_keywords_go_only_where_they_are_taken():
    record = []
    module = recording(record)

    class UvaBufferPool:
        def __init__(self, size, dtype, max_concurrency=None, *, guard=None, manager=None):
            record.append((guard, manager))

    module.UvaBufferPool = UvaBufferPool
    for manager in (None, "a manager"):
        target = Target(module, device=CPU, manager=manager)
        target.make(ops.Make(name="p", what="pool", size=4, guard="grow"))()
        target.make(ops.Make(name="b", what="backed", size=4, guard="grow"))()
    assert record == [
        ("grow", None),
        ("UvaBackedTensor", (4, torch.int32), {}),
        ("grow", "a manager"),
        ("UvaBackedTensor", (4, torch.int32), {}),
    ]
    assert takes_guard(module)
    assert not takes_guard(plain())


@pytest.mark.parametrize("name", ["device_tensor", "gpu"])
def test_the_handle_is_read_anew_and_device_tensor_comes_first(name):
    target = Target(plain(), device=CPU)
    handles = {"gpu": [torch.zeros(1), torch.ones(1)]}
    thing = type("Thing", (), {"gpu": property(lambda self: handles["gpu"].pop(0))})
    if name == "device_tensor":
        handles[name] = [torch.zeros(2), torch.ones(2)]
        thing.device_tensor = property(lambda self: handles[name].pop(0))
    target.objects["t"] = thing()
    assert [float(target.handle("t").sum()) for _ in range(2)] == ([0, 2] if name == "device_tensor" else [0, 1])
    target.objects["t"] = object()
    with pytest.raises(MissingNameError, match="neither `device_tensor` nor `gpu`"):
        target.handle("t")


def fused(apply):
    module = plain()
    seen = []
    module.FusedStagedWriter.apply = apply(seen)
    stream = [ops.Make(name=f"t{i}", what="staged", size=(3, 5 + i)) for i in range(2)]
    stream += [ops.Make(name="w", what="fused", max_writes=4), ops.FusedApply(name="w", tensors=("t0", "t1"))]
    performed(stream, module)
    return seen[0]


def test_fused_apply_gets_tables_of_pointers_and_strides():
    def apply(seen):
        return lambda self, tensors, output_ptrs, output_strides: seen.append((tensors, output_ptrs, output_strides))

    tensors, pointers, strides = fused(apply)
    assert pointers.dtype == torch.uint64
    assert pointers.tolist() == [tensor.gpu.data_ptr() for tensor in tensors]
    assert strides.dtype == torch.int64
    assert strides.tolist() == [5, 6]


def test_fused_apply_gets_none_where_they_default_to_none():
    def apply(seen):
        return lambda self, tensors, output_ptrs=None, output_strides=None: seen.append((output_ptrs, output_strides))

    assert fused(apply) == (None, None)


@pytest.mark.parametrize("given", ["tensors, ptrs, strides", "*args", "tensors, *more", "*args, **keywords"])
def test_fused_apply_gets_its_tables_whatever_its_parameters_are_called(given):
    space = {}
    exec(f"def make(seen):\n    return lambda self, {given}: seen.append(locals())", space)
    seen = fused(space["make"])
    assert (
        sum(
            isinstance(x, torch.Tensor)
            for value in seen.values()
            for x in (value if isinstance(value, tuple) else (value,))
        )
        == 2
    )


def test_fused_apply_of_the_tensors_alone_gets_no_tables():
    assert len(fused(lambda seen: lambda self, tensors: seen.append(tensors))) == 2


def test_a_module_that_cannot_be_asked_for_what_it_lacks_is_judged_by_what_it_has():
    source = PLAIN + "\ndef __getattr__(name):\n    raise RuntimeError(name)\n"
    found, _ = performed([ops.Make(name="p", what="pool", size=4), ops.Publish(name="p", num_rows=4)], plain(source))
    assert not found
    module = plain(source)
    del module.UvaBufferPool
    with pytest.raises(TargetRaisedError):
        performed([ops.Make(name="p", what="pool", size=4)], module)


def test_a_tensor_that_cannot_be_looked_at_is_a_finding():
    source = (
        PLAIN
        + """
class Shy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *args):
        raise RuntimeError("no touching")

UvaBufferPool.copy_to_uva = lambda self, x: torch.zeros(4, dtype=torch.int32).as_subclass(Shy)
"""
    )
    found, _ = performed([ops.Make(name="p", what="pool", size=4), ops.Publish(name="p", num_rows=4)], plain(source))
    assert [finding.kind for finding in found] == ["dtype"]
    assert "cannot be looked at: RuntimeError: no touching" in found[0].summary


PASSED = [(dtype, via) for dtype in values.TORCH for via in ops.VIAS if (dtype, via) != ("bfloat16", "ndarray")]


@pytest.mark.parametrize(("dtype", "via"), PASSED)
def test_payloads_keep_their_bits_whatever_they_are_passed_as(dtype, via):
    form = Form("p", dtype, (4, 3))
    bits = Payload(seed=1, seat="s0").block(form, Mark(1, 0), extent=(4, 3))
    given = values.convert(form, bits, num_rows=4, via=via)
    assert isinstance(given, {"tensor": torch.Tensor, "list": list}.get(via, object))
    back = torch.as_tensor(given, dtype=values.TORCH[dtype])
    assert torch.equal(back, values.convert(form, bits, num_rows=4, via="tensor"))
    assert len(values.flat(form, bits, via="list")) == 12


def test_a_file_is_executed_anew_and_its_source_can_be_found_in_tracebacks():
    source = PLAIN + "\ncalls = []\n"
    with loaded(spec("mine", source), device=CPU) as first:
        first.calls.append(1)
        assert sys.modules[first.__name__] is first
        assert linecache.getline(first.__file__, 1).startswith('"""A correct module')
    with loaded(spec("mine", source), device=CPU) as second:
        assert second.calls == []
    assert first.__name__ not in sys.modules


def test_an_import_that_raises_anything_is_the_targets():
    for text in (
        "raise OSError('x')",
        "raise SystemExit(3)",
        "raise KeyboardInterrupt",
        "def broken(:",
        "import no_such_module_anywhere",
    ):
        with pytest.raises(ImportFailedError), loaded(spec("mine", text), device=CPU):
            pass


def test_a_module_by_name_is_a_target():
    with loaded(spec("x") | {"kind": "module", "module": "staging"}, device=CPU) as module:
        assert module.UvaBufferPool.__module__ == "staging.pool"


@pytest.mark.parametrize(
    ("error", "wants_gpu"),
    [
        (RuntimeError("pin_memory=True requires a CUDA or other accelerator backend"), True),
        (AssertionError("Torch not compiled with CUDA enabled"), True),
        (RuntimeError("UVA is not available on this platform"), True),
        (ImportError("No module named 'triton'"), True),
        (AttributeError("'_OpNamespace' '_C' object has no attribute 'get_cuda_view_from_cpu_tensor'"), True),
        (AttributeError("'Pool' object has no attribute 'cuda'"), False),
        (TypeError("cuda() takes no arguments"), False),
        (ValueError("size must be positive"), False),
        (RuntimeError("out of slots"), False),
        (RuntimeError("cuda stream table is full"), False),
        (ValueError("a pinned resident tensor may have at most 512 columns"), False),
        (RuntimeError("Found no NVIDIA driver on your system."), True),
        (RuntimeError("0 active drivers ([]). There should only be one."), True),
    ],
)
def test_only_a_lack_of_hardware_is_a_lack_of_hardware(error, wants_gpu):
    assert needs_gpu(error) == wants_gpu


@pytest.mark.skipif(torch.cuda.is_available(), reason="here pinned memory is there")
def test_a_constructor_that_pins_memory_skips_on_a_cpu():
    judgement = judged("slot_reuse", "constructor_pins", "cpu", num_steps=3)
    assert judgement.result.skip.startswith("needs a GPU: ")
    assert not judgement.found


@pytest.mark.parametrize("fault", ["wrong_dtype", "wrong_shape", "not_a_tensor"])
def test_a_handle_of_another_kind_is_a_finding(fault):
    assert judged("slot_reuse", fault, "sim", num_steps=5, copies_every=0).kinds == {"dtype"}


def test_readers_of_what_eager_device_work_writes_run_before_it():
    stream = [
        ops.Make(name="t", what="staged", size=(2, 4)),
        ops.Make(name="n", what="nonuva", size=4),
        ops.Make(name="p", what="pool", size=4, depth=8),
    ]
    for number in range(1, 5):
        stream += [
            ops.Step(number=number, in_flight=4),
            ops.Stage(name="t", row=0, start=0, length=4),
            ops.Apply(name="t"),
            ops.Read(name="t"),
            ops.Expose(name="n", num_rows=4),
            ops.Read(name="n"),
            ops.CopyToGpu(name="p", num_rows=4, out=True),
            ops.Read(name="p"),
        ]
    found, observer = performed(stream, plain())
    assert not found
    assert observer.checked.words == 4 * (8 + 4 + 4)


def test_a_stream_ordered_module_gets_no_race_verdict_on_a_cpu():
    source = planted("one_step_early")
    stream = [ops.Make(name="p", what="pool", size=8, depth=2)]
    for number in range(1, 6):
        stream += [ops.Step(number=number, in_flight=2), ops.Publish(name="p", num_rows=8), ops.Read(name="p")]
    assert {finding.kind for finding in performed(stream, plain(source))[0]} == {"slot_reuse"}
    assert not performed(stream, plain(source + '\nRIG_READS = "stream_ordered"\n'))[0]


def test_a_file_built_on_our_library_runs_on_the_rigs_clock():
    from cells import exhausted

    from rig.controls import defaults
    from rig.drive import Progress
    from rig.judge import Cell, verify

    source = "import staging\nfrom staging import *\n\nclass UvaBufferPool(staging.UvaBufferPool):\n    pass\n"
    for extra, kinds in (
        ("", set()),
        ("    def __init__(self, *a, **k):\n        super().__init__(*a, **k, guard='trust')\n", {"slot_reuse"}),
    ):
        cell = Cell(
            scenario="slot_reuse",
            params=defaults("slot_reuse") | {"in_flight": 5, "num_steps": 40, "copies_every": 0, "num_backed": 0},
            backend="sim",
            device=CPU,
            seed=1,
            seat="s0",
        )
        with loaded(spec("mine", source + extra), device=CPU) as module:
            judgement = exhausted(verify(cell, module, progress=Progress()))
        assert judgement.kinds == kinds
        assert judgement.result.checked.words


def test_the_interpreter_is_chosen_before_a_target_is_imported():
    code = "import os; from rig.worker import Worker; Worker(seat='s0', device='cpu', seed=1); "
    code += "print(os.environ['TRITON_INTERPRET'])"
    clean = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    assert (
        subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=True).stdout
        == "1\n"
    )
