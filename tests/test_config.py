"""Each kind of bad config is one message with file and line; good ones are typed and complete."""

import os
import sys
from pathlib import Path

import pytest

from rig import load_config
from rig.errors import UsageError

GOOD = """\
version: 1
name: t
seed: 3
seats: {kind: cpu, expect: {cpu_nodes: 1}}
targets: [model]
backends: [sim]
runs:
  - scenario: slot_reuse
    sweep:
      depth: [2, 3]
    params: {num_steps: 5}
"""


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "c.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def complaint(path: Path, **more: object) -> str:
    with pytest.raises(UsageError) as caught:
        load_config(path, **more)  # type: ignore[arg-type]
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_good_config_is_complete_and_frozen(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GOOD))
    assert (config.seed, config.targets, config.runs[0].sweep) == (3, ("model",), {"depth": (2, 3)})
    assert (config.controls, config.reports, config.seats.expect.gpus) == (True, ("console", "json"), 0)
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("seed: 3", "retry: {infra: -1}", 3, "retry.infra: found int -1; expected at least 0"),
        ("seed: 3", "retry: {fail: 1}", 3, "retry.fail: unknown key 'fail'; known: infra"),
        ("seed: 3", "sead: 3", 3, "unknown key 'sead'; did you mean 'seed'?"),
        ("kind: cpu", "kidn: cpu", 4, "seats.kidn: unknown key 'kidn'; did you mean 'kind'?"),
        ("cpu_nodes: 1", "cpus: 1", 4, "unknown key 'cpus'; did you mean 'gpus'?"),
        ("    params:", "    parms:", 11, "runs.0.parms: unknown key 'parms'; did you mean 'params'?"),
        ("version: 1\n", "", 1, "missing key 'version'"),
        ("scenario: slot_reuse", "mode: both", 8, "runs.0: missing key 'scenario'"),
        ("version: 1", "version: 2", 1, "version: found int 2; expected at most 1"),
        ("version: 1", "version: true", 1, "version: found bool True; expected an integer"),
        ("seed: 3", "seed: '3'", 3, "seed: found str '3'; expected an integer"),
        ("seed: 3", "seed: true", 3, "seed: found bool True; expected an integer"),
        ("seed: 3", "seed: -1", 3, "seed: found int -1; expected at least 0"),
        ("seed: 3", "seed: 1.5", 3, "seed: found float 1.5; expected an integer"),
        ("seed: 3", "seed:", 3, "seed: found nothing (null); expected an integer"),
        ("kind: cpu", "kind: tpu", 4, "seats.kind: found str 'tpu'; expected 'auto', 'gpu' or 'cpu'"),
        ("name: t", "name: ../t", 2, "expected at most 64 letters"),
        ("[model]", "model", 5, "targets: found str 'model'; expected a list"),
        ("[model]", "[]", 5, "targets: found a list of 0 items; expected at least 1"),
        ("[model]", "[modle]", 5, "targets.0: unknown target 'modle'"),
        ("[model]", "[model, model]", 5, "targets.1: 'model' and 'model' are both called 'model'"),
        ("[model]", "[faulty]", 5, "targets.0: target faulty expects one of its faults"),
        ("[model]", "['faulty:early_fre']", 5, "did you mean 'early_free'?"),
        ("[model]", "[nowhere.py]", 5, "nowhere.py: no such file"),
        ("[sim]", "[simm]", 6, "backends.0: unknown backend 'simm'; did you mean 'sim'?"),
        ("[sim]", "[sim, sim]", 6, "backends.1: backend 'sim' is listed twice"),
        ("runs:", "reports: [xml]\nruns:", 7, "reports.0: unknown report 'xml'"),
        ("runs:", "faults: [kill_actor]\nruns:", 7, "faults: found a list of 1 items; expected at most 0"),
        ("slot_reuse", "slot_resue", 8, "unknown scenario 'slot_resue'; did you mean 'slot_reuse'?"),
        ("num_steps: 5", "num_step: 5", 11, "unknown parameter 'num_step' of slot_reuse; did you mean 'num_steps'?"),
        ("num_steps: 5", "num_steps: five", 11, "runs.0.params.num_steps: expected int, got 'five'"),
        ("num_steps: 5", "num_steps: 0", 11, "expected at least 1, got 0"),
        ("[2, 3]", "[2, x]", 10, "runs.0.sweep.depth.1: expected int, got 'x'"),
        ("[2, 3]", "[2, 2]", 10, "a value of 'depth' is listed twice"),
        ("[2, 3]", "[]", 10, "runs.0.sweep.depth: found a list of 0 items; expected at least 1"),
        ("[2, 3]", "2", 10, "runs.0.sweep.depth: found int 2; expected a list"),
        ("num_steps: 5", "depth: 5", 11, "'depth' is in params and in sweep"),
        ("num_steps: 5", "1: 5", 11, "found the key int 1; expected a string as key"),
        ("    params", "    timeout_s: 0\n    params", 11, "runs.0.timeout_s: found int 0; expected more than 0"),
        ("    params", "    timeout_s: .inf\n    params", 11, "expected a finite number"),
        ("    params", "    mode: verfy\n    params", 11, "did you mean 'verify'?"),
        (
            "    params",
            "    mode: both\n    limits: {fast: 1}\n    params",
            12,
            "unknown limit 'fast'; expected OP_us_p99_max",
        ),
        (
            "    params",
            "    limits: {publish_us_p99_max: 1}\n    params",
            11,
            "limits need timings, and mode is verify",
        ),
        (
            "    params",
            "    mode: both\n    limits: {publsh_us_p50_max: 1}\n    params",
            12,
            "unknown operation 'publsh' in a limit; did you mean 'publish'?",
        ),
        ("seed: 3", "name: u", 3, "key 'name' is given twice; the first is on line 2"),
        ("seed: 3", "seed: [3", 4, "not valid YAML"),
        ("seed: 3", "seed: *x", 3, "not valid YAML: found undefined alias"),
        ("seed: 3", "seed: !!python/object:os.system 3", 3, "not valid YAML"),
        ("targets: [model]", "targets: &t [*t]", 5, "a value that contains itself"),
    ],
)
def test_bad_value_is_named_with_its_line(tmp_path: Path, old: str, new: str, line: int, says: str) -> None:
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new, 1))
    text = complaint(path)
    assert text.startswith(f"{path}:{line}: ")
    assert says in text


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", ":1: the file is empty"),
        (b"# only a comment\n", ":1: the file is empty"),
        (b"- 1\n", ":1: found a list of 1 items; expected a mapping"),
        (b"just words\n", ":1: found str 'just words'; expected a mapping"),
        (b"version: 1\n\x89PNG\xff\n", ":2: not UTF-8 text"),
        (b"version: 1\n\x00\n", ":2: a binary file"),
        (b"\x01\x02\x03", ":1: not valid YAML"),
        (b"version: 1\n---\nversion: 1\n", "expected a single document in the stream but found another document"),
        (b"#" * (1 << 20) + b"#", "larger than 1 MiB"),
        (b"[" * 100_000, ":1: nested too deeply"),
    ],
)
def test_file_that_is_no_config_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    path = write(tmp_path, content)
    text = complaint(path)
    assert text.startswith(str(path))
    assert says in text


def test_missing_file_and_folder_are_named(tmp_path: Path) -> None:
    assert complaint(tmp_path / "no.yaml") == f"{tmp_path / 'no.yaml'}: no such file; expected a config"
    assert "cannot be read (Is a directory)" in complaint(tmp_path)


def test_aliases_that_explode_are_refused(tmp_path: Path) -> None:
    bomb = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
    bomb += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 8))
    assert "aliases counted" in complaint(write(tmp_path, bomb))


def test_unknown_preset_names_the_known_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mine.yaml").write_text(GOOD)
    assert load_config("mine").name == "t"
    assert "neither a file nor a preset; presets: did you mean 'mine'?" in complaint(Path("mien"))


def test_several_problems_are_one_message(tmp_path: Path) -> None:
    text = complaint(write(tmp_path, GOOD.replace("[model]", "[modle]").replace("[sim]", "[smi, cup]")))
    assert text.endswith("(and 2 more problems)")


def test_too_many_cells_are_refused(tmp_path: Path) -> None:
    wide = f"      depth: {list(range(2, 60))}\n      num_steps: {list(range(1, 200))}\n"
    text = complaint(
        write(tmp_path, GOOD.replace("      depth: [2, 3]\n", wide).replace("params: {num_steps: 5}", "params: {}"))
    )
    assert "11542 cells per seat in all; expected at most 10000" in text


@pytest.mark.parametrize(
    ("setting", "path", "value"),
    [
        ("seed=9", "seed", 9),
        ("runs.0.params.num_steps=7", "runs.0.params", {"num_steps": 7}),
        ("runs.0.sweep.depth=[4]", "runs.0.sweep", {"depth": (4,)}),
        ("runs.0.sweep.depth.1=5", "runs.0.sweep", {"depth": (2, 5)}),
        ("cluster.local_nodes=3", "cluster.local_nodes", 3),
        ("controls=false", "controls", False),
        ("name=x=y".replace("=y", ""), "name", "x"),
    ],
)
def test_setting_is_typed_as_yaml(tmp_path: Path, setting: str, path: str, value: object) -> None:
    found: object = load_config(write(tmp_path, GOOD), settings=[setting])
    for part in path.split("."):
        found = found[int(part)] if part.isdigit() else getattr(found, part)  # type: ignore[index]
    assert found == value


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("seed", "expected path=value"),
        ("=3", "expected path=value"),
        ("a..b=3", "expected path=value"),
        ("seed=[", "not valid YAML"),
        ("seed=" + "[" * 10_000, "nested too deeply"),
        ("a." * 10_000 + "b=1", "expected path=value"),
        ("seed=x", "--set seed=x: seed: found str 'x'; expected an integer"),
        ("sed=1", "--set sed=1: sed: unknown key 'sed'; did you mean 'seed'?"),
        ("runs.5.mode=both", "runs has 1 items; known: 0"),
        ("runs.x.mode=both", "runs has 1 items; known: 0"),
        ("seed.a=1", "seed is 3, which holds no 'a'"),
        (
            "runs.0.params.num_steps=x",
            "--set runs.0.params.num_steps=x: runs.0.params.num_steps: expected int, got 'x'",
        ),
    ],
)
def test_bad_setting_is_named_instead_of_a_line(tmp_path: Path, setting: str, says: str) -> None:
    text = complaint(write(tmp_path, GOOD), settings=[setting])
    assert text.startswith("--set ")
    assert says in text


def test_switches_replace_the_lists(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    config = load_config(path, targets=["staging", "faulty:early_free"], backends=["cpu"], seed=11)
    assert (config.targets, config.backends, config.seed) == (("staging", "faulty:early_free"), ("cpu",), 11)
    assert complaint(path, backends=["cpu", "gpu"]).startswith("--backend gpu: backends.1: unknown backend 'gpu'")
    assert complaint(path, targets=["nope"]).startswith("--target nope: targets.0: unknown target 'nope'")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("big.py", b"#" * (1 << 20) + b"#", "larger than 1 MiB"),
        ("bin.py", b"\xff\xfe", "not UTF-8 text"),
        ("zero.py", b"a\n\0", "a binary file"),
        ("staging.py", b"", "would be called 'staging', a built-in target"),
    ],
)
def test_target_file_that_cannot_be_shipped_is_refused(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert says in complaint(write(tmp_path, GOOD), targets=[str(tmp_path / name)])


def test_target_file_may_lie_beside_the_config(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise RuntimeError('the driver imports no target')")
    config = load_config(write(tmp_path, GOOD.replace("[model]", "[mine.py]")))
    assert config.targets == (str(tmp_path / "mine.py"),)


@pytest.mark.parametrize("entry", ["vllm.v1.worker.gpu.buffer_utils", "a.b"])
def test_dotted_module_is_left_to_the_workers(tmp_path: Path, entry: str) -> None:
    assert load_config(write(tmp_path, GOOD), targets=[entry]).targets == (entry,)
    assert entry not in sys.modules


def test_entry_that_plans_a_cell_of_another_is_named_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + "  - {scenario: slot_reuse, sweep: {num_steps: [4, 5]}, params: {depth: 3}}\n")
    assert complaint(path).startswith(f"{path}:12: runs.1: plans a cell that runs.0 plans too")


def test_pipe_is_refused_before_it_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "c.yaml")
    assert "a pipe or a device; expected a config" in complaint(tmp_path / "c.yaml")


def test_empty_name_is_no_folder() -> None:
    with pytest.raises(UsageError, match="'': no config named"):
        load_config("")
