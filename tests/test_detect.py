"""configs/detect.yaml over correct modules that are written in different ways: nothing may be found."""

import json
from pathlib import Path

import pytest

from rig.__main__ import main

ROOT = Path(__file__).resolve().parent.parent
OTHERS = [str(ROOT / "tests" / "targets" / f"{name}.py") for name in ("plain", "thorough", "list_based")]


@pytest.mark.parametrize("target", [*OTHERS, "unfenced", "model", "staging"], ids=lambda name: Path(name).stem)
def test_a_correct_module_of_any_make_has_no_finding(target, tmp_path):
    out = tmp_path / "out"
    words = ["run", str(ROOT / "configs" / "detect.yaml"), "--local", "--target", target, "--out", str(out)]
    with pytest.raises(SystemExit) as end:
        main([*words, "--set", "controls=false", "--set", "seats.kind=cpu", "--set", "reports=[json]"])
    report = json.loads((out / "report.json").read_text())
    assert (end.value.code, report["verdict"], report["findings"]) == (0, "PASS", [])
    assert report["coverage"]["checked_words"] > 10_000_000
