"""`--ledger` from the command line to the report, and the laptop's scenarios, which are in order."""

import json
import shlex
from pathlib import Path

import pytest
import yaml
from cells import judged
from targets.faults import PLAIN, planted

from rig import load_config
from rig.__main__ import main
from rig.plan import plan
from rig.seats import Seat

CONFIG = """\
version: 1
name: tiny
seats: {kind: cpu}
backends: [cpu]
controls: false
runs:
  - scenario: slot_reuse
    params: {num_steps: 6, rows: 4}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(CONFIG)
    return path


def rig(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    return int(end.value.code or 0)


@pytest.mark.parametrize("source", [planted("one_step_early"), PLAIN])
def test_the_switch_makes_the_verdict_and_is_part_of_the_replay(source: str, config: Path, tmp_path: Path) -> None:
    target, out = tmp_path / "mine.py", tmp_path / "out"
    target.write_text(source)
    fails = source != PLAIN
    asked = ("run", config, "--local", "--target", target)
    assert rig(*asked, "--out", tmp_path / "without") == 0
    assert rig(*asked, "--ledger", "--out", out) == (1 if fails else 0)
    report = json.loads((out / "report.json").read_text())
    (assignment,) = report["assignments"]
    assert report["coverage"]["counters"]["ledger_settle_edges"] > 0
    assert assignment["reason"].startswith("ledger: `pool0`: no fence between the read of step 1") == fails
    for path in (out / "failures").glob("*.yaml"):
        assert "--ledger" in shlex.split(yaml.safe_load(path.read_text())["command"])
    assert (out / "failures").exists() == fails


def test_switch_and_key_reach_every_assignment(config: Path) -> None:
    seat = Seat(id="s0", kind="cpu")
    assert [a["ledger"] for a in plan(load_config(config), [seat]).dicts()] == [False]
    assert [a["ledger"] for a in plan(load_config(config, ledger=True), [seat]).dicts()] == [True]
    config.write_text(CONFIG + "ledger: true\n")
    assert [a["ledger"] for a in plan(load_config(config), [seat]).dicts()] == [True]
    assert rig("plan", config) == 0


def laptop() -> list[tuple[str, str, dict[str, object]]]:
    cells = plan(load_config("laptop"), [Seat(id="s0", kind="cpu")]).assignments
    return [(cell.scenario, cell.backend, cell.params) for cell in cells]


@pytest.mark.parametrize(("scenario", "backend", "params"), laptop())
def test_our_library_is_in_order_in_every_cell_of_the_laptop_run(
    scenario: str, backend: str, params: dict[str, object]
) -> None:
    run = judged(scenario, "staging", backend, ledger=True, **params | {"num_steps": 9})
    assert run.found == []
    assert run.result.skip is None
    assert "ledger_missing" not in run.result.ledger
    assert run.result.ledger["ledger_fence_edges"] > 0
