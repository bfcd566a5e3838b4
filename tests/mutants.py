"""The mutation run: a correct module broken in one place at a time; `configs/detect.yaml` must catch each.

    python tests/mutants.py                          # on a CPU; two at a time, about 10 minutes
    python tests/mutants.py --jobs 8 --backend cuda_uva
    python tests/mutants.py --faults                 # tests/targets/faults.py instead: faults chosen by hand
    python tests/mutants.py --list                   # what would be tried

Prints one line per variant and a summary; exits 1 if a variant survives that `EQUIVALENT` does not explain.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
MODULE = HERE / "targets" / "thorough.py"
CONFIG = HERE.parent / "configs" / "detect.yaml"
CAUGHT = (1, 5)  # exits: FAIL, HANG

# Variants that no caller of upstream's contract can tell from the module: by their text, and why.
EQUIVALENT = {
    "off by one at 11": "the rig names every depth; a larger default is as right",
    "CHUNK = 1024": "the chunk's length is free, and a slot that is too small grows",
    "swap at 16: _default_depth = max(2, n)": "max of the same two",
    "off by one at 16: _default_depth = max(2, n)": "a larger default depth is as right",
    "off by one at 69: self._current = 0": "which slot is the first is free",
    "operator (Add) at 74": "slots may be used in the other direction",
    "comparison at 75: if num_rows > len": "a slot is replaced that its readers have left already; it only costs time",
    "off by one at 76: rows = 1 << (num_rows - 1)": "a slot may be larger",
    "operator (Sub) at 76: rows = 1 << (num_rows - 1)": "a slot may be larger",
    "stale at 104: self._published = now": "what did not change is published again; it only costs time",
    "swap at 102": "torch.equal of the same two",
    "swap at 154: count = min(CHUNK, length - offset)": "min of the same two",
    "whole at 173: scatter(packed[begin": "the lengths say where each tensor's part ends",
    "at 24: flat = {": "torch does not look at the number of the protocol's version, or (on a CPU) no alias is made",
    "fault gpu_float_bits": "upstream promises no float32 by the fused writer",
}
ON_GPU = {"fault constructor_pins": "a GPU's seat can pin memory"}
ON_CPU = {  # where memory is neither pinned nor aliased; a constructor that has to pin is skipped there
    "fault constructor_pins": "its cells are skipped for lack of a GPU",
    "stale at 23: self.host = host": "no alias is made on a CPU",
    "stale at 25: self.__cuda_array_interface__": "no alias is made on a CPU",
    "unpinned at 35": "nothing is pinned on a CPU",
}

_BINARY = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Mod: ast.FloorDiv, ast.LShift: ast.Add}
_COMPARE = {ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Lt: ast.LtE, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
_COMPARE |= {ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.NotIn: ast.In}


def variants(source: str) -> Iterator[tuple[str, str]]:
    """(what was done, the source with it) for every place where an operator applies, in the order of the file."""
    tree = ast.parse(source)
    lines = source.splitlines()
    for number, node in enumerate(ast.walk(tree)):
        for name, change in _changes(node):
            broken = copy.deepcopy(tree)
            place = next(n for i, n in enumerate(ast.walk(broken)) if i == number)
            change(place, broken)
            text = ast.unparse(ast.fix_missing_locations(broken))
            if text != ast.unparse(tree):
                line = getattr(node, "lineno", 0)
                yield f"{name} at {line}: {lines[line - 1].strip()}", text


def faults() -> Iterator[tuple[str, str]]:
    """The faults of tests/targets/faults.py, each one line of plain.py."""
    sys.path.insert(0, str(HERE))
    from targets.faults import FAULTS, PLAIN_GPU, planted

    for name in FAULTS:
        yield f"fault {name}", planted(name, PLAIN_GPU)


def _changes(node):
    """The single faults that a node allows."""
    if isinstance(node, ast.Expr | ast.AugAssign) and not isinstance(getattr(node, "value", None), ast.Constant):
        yield "drop", lambda n, tree: _replace(tree, n, ast.Pass())
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute) and _in_method(node):
        yield "stale", lambda n, tree: _replace(tree, n, ast.Pass())
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        yield f"operator ({type(node.op).__name__})", lambda n, tree: setattr(n, "op", _BINARY[type(n.op)]())
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARE:
        yield "comparison", lambda n, tree: setattr(n, "ops", [_COMPARE[type(n.ops[0])]()])
    if isinstance(node, ast.If):
        yield "negate", lambda n, tree: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield "off by one", lambda n, tree: setattr(n, "value", n.value + 1)
    if isinstance(node, ast.Slice) and node.upper is not None:
        yield "short", lambda n, tree: setattr(n, "upper", ast.BinOp(n.upper, ast.Sub(), ast.Constant(1)))
        yield "whole", lambda n, tree: setattr(n, "upper", None)
    if isinstance(node, ast.Slice) and node.lower is not None:
        yield "from the start", lambda n, tree: setattr(n, "lower", None)
    if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice | ast.Constant | ast.Tuple):
        yield "wrong slot", lambda n, tree: setattr(n, "slice", ast.Constant(0))
    if isinstance(node, ast.Call) and len(node.args) >= 2:
        yield "swap", lambda n, tree: n.args.__setitem__(slice(0, 2), n.args[1::-1])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("clone", "view"):
        yield "alias", lambda n, tree: _replace(tree, n, n.func.value)
    if isinstance(node, ast.keyword) and node.arg == "dtype":
        yield "dtype", lambda n, tree: setattr(n, "value", ast.parse("torch.float16", mode="eval").body)
    if isinstance(node, ast.keyword) and node.arg == "pin_memory":
        yield "unpinned", lambda n, tree: setattr(n, "value", ast.Constant(False))
    if isinstance(node, ast.Return) and node.value is not None:
        yield "nothing", lambda n, tree: setattr(n, "value", None)


def _in_method(node: ast.Assign) -> bool:
    return isinstance(node.targets[0].value, ast.Name) and node.targets[0].value.id == "self"


def _replace(tree: ast.AST, old: ast.AST, new: ast.AST) -> None:
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, field, new)
            elif isinstance(value, list) and old in value:
                value[value.index(old)] = new


def judge(name: str, source: str, *, folder: Path, backend: str | None) -> tuple[int, str]:
    """The exit of a run over one variant, and what it was found as."""
    path = folder / f"{name}.py"
    path.write_text(source, encoding="utf-8")
    out = folder / name
    words = [sys.executable, "-m", "rig", "run", str(CONFIG), "--local", "--fail-fast", "--target", str(path)]
    words += [
        "--out",
        str(out),
        "--set",
        "reports=[json]",
        "--set",
        "shrink_s=0",
        *(["--backend", backend] if backend else []),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    try:
        report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return done.returncode, done.stderr.strip()[-300:]
    found = report["findings"]
    told = f"{found[0]['kind']}: {found[0]['summary']}" if found else "; ".join(report["run"]["reasons"][:2])
    return done.returncode, f"{told} [{found[0]['assignment']}]" if found else told


def main() -> int:
    """Try every variant; 0 if all are caught or explained."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--module", type=Path, default=MODULE)
    parser.add_argument("--backend")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="only each n-th variant")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--only", help="variants whose description contains this")
    options = parser.parse_args()
    known = EQUIVALENT | (ON_GPU if options.backend in ("cuda_uva", "cuda_copy") else ON_CPU)
    found = list(faults()) if options.faults else list(variants(options.module.read_text(encoding="utf-8")))
    tried = [(f"m{i:03d}", what, text) for i, (what, text) in enumerate(found) if (options.only or "") in what]
    tried = tried[:: options.every]
    if options.list:
        print("\n".join(f"{name} {what}" for name, what, _ in tried))
        return 0
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="mutants") as place, ThreadPoolExecutor(options.jobs) as pool:
        folder = Path(place)
        results = pool.map(lambda v: judge(v[0], v[2], folder=folder, backend=options.backend), tried)
        for (name, what, _), (code, told) in zip(tried, results, strict=True):
            why = next((why for piece, why in known.items() if piece in what), None)
            verdict = "caught" if code in CAUGHT else "equivalent" if code == 0 and why else "SURVIVED"
            counts[verdict] += 1
            print(
                f"{verdict:10} {name} exit {code} {what} | {why if verdict == 'equivalent' else told[:220]}", flush=True
            )
    print(f"{len(tried)} variants: " + ", ".join(f"{n} {verdict}" for verdict, n in counts.items()))
    return 1 if counts["SURVIVED"] else 0


if __name__ == "__main__":
    sys.exit(main())
