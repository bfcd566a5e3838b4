"""From a target with a fault to the files of its findings, in this process."""

import json

import pytest
from cells import spec
from doubles import Tale, planned
from targets.faults import planted

from rig import failures
from rig.__main__ import main
from rig.controls import defaults
from rig.digest import digest
from rig.worker import Worker


def rig(*arguments):
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    return int(end.value.code or 0)


def judged(target, scenario, backend="sim", *, shrink_s=60.0, apart=False, **params):
    """The records of a run with one assignment."""
    given = defaults(scenario) | {"num_steps": 30} | params
    cell = f"{scenario}:{target['name']}:{backend}:"
    one = planned(cell=cell, scenario=scenario, target=target["name"], backend=backend, params=given, seed=3)
    one |= {"timeout_s": 120.0, "shrink_s": shrink_s}
    tale = Tale([one], targets={target["name"]: target}, versions={"staging-rig": "0.1.0"})
    worker = Worker(seat="s0", device="cpu", seed=7, apart=apart)
    for body in worker.run(one, target):
        told = {"assignment": one["id"], "seat": "s0", "incarnation": "inc"}
        tale.add(one["id"], "inc", json.loads(json.dumps(body)) | told)
    worker.close()
    return tale.ends()


def written(folder, records):
    """Their files, as (path, contents), and the report."""
    report = digest(records)
    folder.mkdir(exist_ok=True)
    failures.write(report, records, folder)
    return report, [(folder / f["replay"], failures.read(str(folder / f["replay"]))) for f in report["findings"]]


def file_of(folder, fault="one_step_early", **more):
    """The file of a fault's first finding."""
    _, files = written(folder, judged(spec("mine", planted(fault)), "slot_reuse", **more))
    return files[0][0]


def counted(failure):
    return [op for op in failure["ops"] if op["op"] not in ("make", "settle")]


def shown(capsys, path, *switches):
    code = rig("replay", path, *switches)
    told = capsys.readouterr()
    return code, told.out.splitlines()
