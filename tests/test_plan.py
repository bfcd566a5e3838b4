"""The plan is pure data: ids, seeds, seats, and nothing heavy is imported for it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rig.config import RunConfig
from rig.errors import UsageError
from rig.plan import plan
from rig.seats import Node, Seat, expected_seats, number_seats

CPU, GPU = Seat(id="s0", kind="cpu"), Seat(id="s0", kind="gpu")


def config(*runs: dict[str, Any], **more: Any) -> RunConfig:
    entries = runs or ({"scenario": "slot_reuse"},)
    base = {"version": 1, "name": "t", "targets": ("staging",), "backends": ("sim",)}
    return RunConfig.model_validate(base | {"runs": entries} | more)


def node(number: int, *, cpus: float = 1, gpus: int = 0, address: str = "10.0.0.1") -> Node:
    return Node(node_id=f"n{number}", address=address, num_cpus=cpus, num_gpus=gpus)


def test_sweep_is_a_full_product_and_ids_hold_only_what_was_given() -> None:
    entry = {"scenario": "slot_reuse", "sweep": {"depth": (2, 3), "in_flight": (1, 2)}, "params": {"num_steps": 5}}
    planned = plan(config(entry), [CPU]).assignments
    assert [a.id for a in planned] == [
        f"slot_reuse:staging:sim:depth={depth},in_flight={k},num_steps=5@s0" for depth in (2, 3) for k in (1, 2)
    ]
    assert planned[0].params["rows"] == 256


def test_list_and_bool_values_are_readable_in_ids() -> None:
    entry = {"scenario": "slot_reuse", "params": {"dtypes": ("int32", "int64"), "cols": 3}, "beyond_contract": True}
    (only,) = plan(config(entry), [CPU]).assignments
    assert only.id == "slot_reuse:staging:sim:beyond_contract=true,cols=3,dtypes=int32+int64@s0"
    assert (only.params["dtypes"], only.params["beyond_contract"]) == (["int32", "int64"], True)


@pytest.mark.parametrize(
    ("backends", "seat", "resolved"),
    [
        (("auto",), CPU, ["sim"]),
        (("auto",), GPU, ["cuda_uva"]),
        (("auto", "sim"), CPU, ["sim"]),
        (("sim", "auto"), GPU, ["sim", "cuda_uva"]),
        (("cuda_copy",), CPU, ["cuda_copy"]),
        (("cpu",), GPU, ["cpu"]),
    ],
)
def test_auto_is_resolved_by_the_kind_of_seat(backends: tuple[str, ...], seat: Seat, resolved: list[str]) -> None:
    assert [a.backend for a in plan(config(backends=backends), [seat]).assignments] == resolved


def test_backend_named_twice_through_auto_is_left_out_with_a_reason() -> None:
    skipped = plan(config(backends=("auto", "sim")), [CPU]).skipped
    assert skipped == (("auto@s0", "auto means sim on a cpu seat, and sim is listed too"),)


def test_seed_is_the_same_on_all_seats_and_changed_by_no_other_cell() -> None:
    entry = {"scenario": "slot_reuse", "sweep": {"depth": (2, 3)}}
    seats = [Seat(id=f"s{i}", kind="cpu") for i in range(3)]
    seeds: dict[str, set[int]] = {}
    for a in plan(config({"scenario": "growth"}, entry), seats).assignments:
        seeds.setdefault(a.id.rpartition("@")[0], set()).add(a.seed)
    assert all(len(own) == 1 for own in seeds.values())
    assert len(set.union(*seeds.values())) == len(seeds)
    alone = plan(config(entry), [CPU]).assignments[0]
    assert {alone.seed} == seeds[alone.id.rpartition("@")[0]]
    assert plan(config(entry, seed=1), [CPU]).assignments[0].seed != alone.seed


def test_two_entries_of_one_cell_are_refused() -> None:
    with pytest.raises(UsageError, match=r"two entries of runs plan slot_reuse:staging:sim:depth=2"):
        plan(config(*[{"scenario": "slot_reuse", "params": {"depth": 2}}] * 2), [CPU])


@pytest.mark.parametrize(
    ("pattern", "count"),
    [("slot_reuse:staging:sim:depth=2@s1", 1), ("slot_reuse:staging:sim:depth=2", 2), ("*depth=3*", 2), ("*@s0", 2)],
)
def test_only_keeps_matching_ids_with_or_without_seat(pattern: str, count: int) -> None:
    seats = [Seat(id=f"s{i}", kind="cpu") for i in range(2)]
    entry = {"scenario": "slot_reuse", "sweep": {"depth": (2, 3)}}
    assert len(plan(config(entry), seats, only=[pattern]).assignments) == count


def test_only_that_matches_nothing_names_the_nearest_ids() -> None:
    with pytest.raises(UsageError, match=r"--only slot_reuse:staging:sim:depht=2: no such assignment; did you mean"):
        plan(config({"scenario": "slot_reuse", "params": {"depth": 2}}), [CPU], only=["slot_reuse:staging:sim:depht=2"])


@pytest.mark.parametrize(
    ("kind", "nodes", "seats"),
    [
        ("auto", [node(0), node(1)], ["s0 cpu n0", "s1 cpu n1"]),
        ("auto", [node(0), node(1, gpus=2)], ["s0 gpu n1", "s1 gpu n1"]),
        ("cpu", [node(0, gpus=2), node(1, gpus=2)], ["s0 cpu n0", "s1 cpu n1"]),
        ("gpu", [node(0), node(1)], []),
        ("auto", [node(0, cpus=0), node(1)], ["s0 cpu n1"]),
        ("gpu", [node(0, cpus=0, gpus=1)], ["s0 gpu n0"]),
        ("auto", [], []),
        (
            "auto",
            [node(2, address="10.0.0.10"), node(1, address="10.0.0.9"), node(0, address="10.0.0.10")],
            ["s0 cpu n1", "s1 cpu n0", "s2 cpu n2"],
        ),
    ],
)
def test_seats_are_numbered_by_address_then_node(kind: str, nodes: list[Node], seats: list[str]) -> None:
    assert [f"{s.id} {s.kind} {s.node_id}" for s in number_seats(nodes, kind=kind)] == seats


@pytest.mark.parametrize(
    ("kind", "expect", "kinds"),
    [
        ("auto", {"cpu_nodes": 3}, ["cpu"] * 3),
        ("auto", {"gpus": 2}, ["gpu"] * 2),
        ("auto", {}, ["cpu"]),
        ("gpu", {}, ["gpu"]),
        ("cpu", {"gpus": 4, "cpu_nodes": 2}, ["cpu"] * 2),
    ],
)
def test_dry_run_uses_the_expected_seats(kind: str, expect: dict[str, int], kinds: list[str]) -> None:
    made = config(seats={"kind": kind, "expect": expect})
    assert [seat.kind for seat in expected_seats(made)] == kinds


@pytest.mark.parametrize("verb", [["plan", "configs/laptop.yaml"], ["plan", "gpu"], ["plan", "compare_vllm"], ["list"]])
def test_dry_verbs_import_nothing_heavy(verb: list[str]) -> None:
    code = (
        "import sys\nfrom rig.__main__ import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "print('HEAVY', sorted({'torch', 'ray', 'staging', 'triton'} & set(sys.modules)))"
    )
    root = Path(__file__).resolve().parent.parent
    ran = subprocess.run(
        [sys.executable, "-c", code, *verb], cwd=root, capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout.splitlines()[-1] == "HEAVY []"
    assert len(ran.stdout.splitlines()) > 5
