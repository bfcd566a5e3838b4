"""`compare` and `ratio_min` in a config: what is refused, and what an assignment carries."""

from pathlib import Path

import pytest

from rig.config import load_config
from rig.errors import UsageError
from rig.plan import plan
from rig.seats import Seat

HEAD = "version: 1\nname: c\ntargets: [staging]\nruns:\n"
HOT = "  - scenario: hot_path\n    mode: measure\n"


def write(tmp_path: Path, runs: str) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text(HEAD + runs)
    return path


def test_assignment_carries_both_targets_and_its_limits(tmp_path: Path) -> None:
    path = write(tmp_path, f"{HOT}    compare: vllm\n    ratio_min: {{elements_each: 2}}\n")
    (one,) = plan(load_config(path), [Seat(id="s0", kind="gpu")]).assignments
    assert one.id == "hot_path:staging:cuda_uva:compare=vllm@s0"
    assert (one.target, one.baseline, one.ratio_min) == ("staging", "vllm", {"elements_each": 2})
    assert "compare" not in one.params


def test_compared_file_may_lie_beside_the_config(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")
    config = load_config(write(tmp_path, f"{HOT}    compare: mine.py\n"))
    assert config.compared == (str(tmp_path / "mine.py"),)
    (one,) = plan(config, [Seat(id="s0", kind="cpu")]).assignments
    assert (one.id, one.baseline) == ("hot_path:staging:sim:compare=mine@s0", "mine")


def test_a_target_may_be_compared_with_itself_and_with_two_others(tmp_path: Path) -> None:
    runs = "".join(f"{HOT}    compare: {name}\n" for name in ("staging", "vllm", "model"))
    planned = plan(load_config(write(tmp_path, runs)), [Seat(id="s0", kind="cpu")]).assignments
    assert [one.baseline for one in planned] == ["staging", "vllm", "model"]


@pytest.mark.parametrize(
    ("runs", "says"),
    [
        ("  - {scenario: hot_path}\n", "runs.0.mode: found 'verify'; expected 'measure': hot_path checks no words"),
        (f"{HOT}    ratio_min: {{elements_each: 2}}\n", "nothing to be faster than; expected `compare: TARGET`"),
        (f"{HOT}    ratio_min: {{element_each: 2}}\n", "unknown case 'element_each' of hot_path; did you mean"),
        (f"{HOT}    compare: vlm\n", "runs.0.compare: unknown target 'vlm'"),
        (f"{HOT}    ratio_min: {{elements_each: 0}}\n", "runs.0.ratio_min.elements_each: found int 0; expected more"),
        (f"{HOT}    limits: {{publish_us_p99_max: 2}}\n", "unknown operation 'publish' in a limit"),
        (f"{HOT}    params: {{cases: [nope]}}\n", "expected one of backed_changed,"),
        ("  - {scenario: growth, compare: vllm}\n", "runs.0.compare: growth is timed call by call"),
        ("  - {scenario: growth, ratio_min: {make: 1}}\n", "runs.0.ratio_min: growth is timed call by call"),
        (f"{HOT}    compare: vllm\n{HOT}    compare: vllm\n", "plans a cell that runs.0 plans too"),
        (
            "  - {scenario: engine_step, mode: measure, params: {trace: /no/such.csv}}\n",
            "runs.0.params.trace: /no/such.csv: cannot be read",
        ),
    ],
)
def test_a_comparison_that_makes_no_sense_is_refused(tmp_path: Path, runs: str, says: str) -> None:
    with pytest.raises(UsageError) as error:
        load_config(write(tmp_path, runs))
    assert says in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "c.yaml:"))


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text("")
    path = write(tmp_path, f"{HOT}    compare: b/mine.py\n")
    with pytest.raises(UsageError, match=r"runs\.0\.compare: .* are both called 'mine'"):
        load_config(path, targets=[str(tmp_path / "a" / "mine.py")])


def test_limits_of_a_whole_name_its_cases(tmp_path: Path) -> None:
    path = write(tmp_path, f"{HOT}    limits: {{elements_each_us_p50_max: 200}}\n")
    assert load_config(path).runs[0].limits == {"elements_each_us_p50_max": 200}
