"""The budget of false alarms: which runs may add to it, and where it shows."""

import json

import pytest
from doubles import made_report

from rig import false_alarms
from rig.errors import UsageError


@pytest.fixture(autouse=True)
def _file(tmp_path, monkeypatch):
    monkeypatch.setattr(false_alarms, "_FILE", tmp_path / "false_alarms.json")


def test_a_long_pass_adds_up_and_replaces_the_run_before():
    assert false_alarms.budget() == {"words": 0, "publishes": 0, "late_readers": 0, "findings": 0, "runs": []}
    for name, words in (("soak", 10), ("soak", 20), ("soak_gpu", 5)):
        false_alarms.add(made_report(name=name, words=words, counters={"publish": 3, "apply": 2, "reads": 4}))
    told = false_alarms.budget()
    assert (told["words"], told["publishes"], told["late_readers"]) == (25, 10, 8)
    assert [run["run"] for run in told["runs"]] == ["soak", "soak_gpu"]
    assert json.loads(false_alarms._FILE.read_text()) == told["runs"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"verdict": "FAIL", "findings": [{}]}, "the run is FAIL with 1 findings"),
        ({"verdict": "SKIP"}, "the run is SKIP"),
        ({"controls": []}, "no controls"),
        ({"target": "my_buffers"}, "target 'my_buffers' is not known to be correct"),
        ({"backend": "cpu"}, "reads at once"),
    ],
)
def test_a_run_that_proves_nothing_is_refused(change, said):
    with pytest.raises(UsageError, match=said):
        false_alarms.add(made_report(**change))
    assert not false_alarms.budget()["runs"]
