"""What a run keeps is linear in assignments and findings, and flat in operations."""

from pathlib import Path
from typing import Any

import pytest
from cells import spec
from doubles import RUN

from rig.controls import defaults
from rig.records import FILE, RecordLog, encode
from rig.shell import Shell
from rig.worker import Worker

KEPT_MAX = 16 << 10  # bytes of records of one assignment, as text


@pytest.fixture(scope="module")
def worker() -> Worker:
    return Worker(seat="s0", device="cpu", seed=7, apart=False)


def kept(worker: Worker, folder: Path, target: str, *, num_steps: int, mode: str) -> tuple[list[Any], int, int]:
    """What the driver keeps of an assignment: its records without their figures, their bytes, and the words checked."""
    params = defaults("slot_reuse") | {"num_steps": num_steps, "depth": 2, "in_flight": 2, "beyond_contract": True}
    about = {"scenario": "slot_reuse", "target": "t", "seat": "s0", "backend": "sim", "mode": mode, "params": params}
    asked = {"id": "slot_reuse:t:sim:@s0", "seed": 3, "timeout_s": 60.0, "limits": {}} | about
    log = RecordLog(folder / FILE)
    for batch in Shell(worker, run=RUN, seat="s0", incarnation="i").run(asked, spec(target)):
        log.append(batch)
    log.close()
    text = "".join(encode(record) for record in log.records)
    assert len(text) + len(log.records) == (folder / FILE).stat().st_size
    words = sum(record.get("checked_words", 0) for record in log.records)
    return [(r["type"], r.get("kind")) for r in log.records], len(text), words


@pytest.mark.parametrize(("target", "mode"), [("staging", "both"), ("faulty:unfenced_reuse", "verify")])
def test_a_hundred_times_the_operations_make_no_more_records(
    worker: Worker, tmp_path: Path, target: str, mode: str
) -> None:
    told = {}
    for num_steps in (12, 1200):
        (tmp_path / str(num_steps)).mkdir()
        told[num_steps] = kept(worker, tmp_path / str(num_steps), target, num_steps=num_steps, mode=mode)
    assert told[1200][0] == told[12][0]
    assert told[1200][1] < KEPT_MAX
    if target == "staging":
        assert told[1200][2] > 50 * told[12][2] > 0


def test_repeats_are_told_by_a_few_bytes_each(tmp_path: Path) -> None:
    log = RecordLog(tmp_path / FILE)
    records = [{"id": f"r/x/1/i/{n}", "type": "finding", "summary": "x" * 10_000} for n in range(50)]
    log.append(records)
    log.append(records)
    log.close()
    assert (len(log.records), log.num_duplicates) == (50, 50)
    assert {len(told) for told in log._seen} == {16}
