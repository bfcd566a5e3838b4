"""Which file may import what: the arrows between the packages, read from the source, nothing imported.

Ruff's banned-api rule gives the same answer while typing; this file also tells the exempt files apart (one
that may import ray may not import triton), finds import cycles, and proves on planted breaches that it works.
"""

import ast
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("staging", "rig")

# What may be imported only by files that match one of the patterns.
FENCES = {
    "ray": ("rig/cluster*.py",),
    "triton": ("staging/kernels.py",),
    "torch.cuda": ("staging/backends/*.py", "rig/device.py"),
    "rig": ("rig/*",),
}
# `rig plan` and `rig list` load these files and must start in an instant.
LIGHT_FILES = ("rig/__main__.py", "rig/config.py", "rig/plan.py", "rig/registry.py", "rig/scenarios/*.py")
LIGHT_FILES += ("rig/incidents/*.py",)
HEAVY_MODULES = ("torch", "ray", "triton", "staging")

Sources = Mapping[str, str]  # path from the root, with slashes -> text


def breaches(sources: Sources) -> list[str]:
    """Every use of a fenced module outside the files that may use it."""
    found = {
        f"{path}:{line}: {fenced}"
        for path, text in sources.items()
        for line, name in used_names(path, text)
        for fenced, allowed in FENCES.items()
        if is_within(name, fenced) and not any(fnmatch(path, pattern) for pattern in allowed)
    }
    return sorted(found)


def cycle(sources: Sources, package: str) -> list[str]:
    """One import cycle between a package's modules, imports in functions included; empty if there is none."""
    graph = import_graph({path: text for path, text in sources.items() if path.startswith(f"{package}/")})
    done: set[str] = set()

    def visit(module: str, trail: list[str]) -> list[str]:
        if module in trail:
            return [*trail[trail.index(module) :], module]
        if module not in done:
            done.add(module)
            for target in sorted(graph[module]):
                if found := visit(target, [*trail, module]):
                    return found
        return []

    return next((found for module in sorted(graph) if (found := visit(module, []))), [])


def heavy_imports(sources: Sources) -> list[str]:
    """Heavy modules that importing a light file would import, directly or through other modules of ours."""
    graph = import_graph(sources, at_import_only=True)
    names = {
        module_of(path): {name for _, name in used_names(path, text, at_import_only=True)}
        for path, text in sources.items()
    }
    found = []
    for path in sources:
        if not any(fnmatch(path, pattern) for pattern in LIGHT_FILES):
            continue
        reached, todo = set(), [module_of(path)]
        while todo:
            module = todo.pop()
            if module not in reached:
                reached.add(module)
                todo += graph[module]
        found += [
            f"{path}: {heavy} through {module}"
            for module in sorted(reached)
            for heavy in HEAVY_MODULES
            if any(is_within(name, heavy) for name in names[module])
        ]
    return found


def import_graph(sources: Sources, *, at_import_only: bool = False) -> dict[str, set[str]]:
    """Module -> the modules of `sources` that it imports."""
    modules = {module_of(path) for path in sources}
    graph: dict[str, set[str]] = {}
    for path, text in sources.items():
        names = {name for _, name in used_names(path, text, at_import_only=at_import_only)}
        targets = {name if name in modules else name.rpartition(".")[0] for name in names}
        graph[module_of(path)] = (targets & modules) - {module_of(path)}
    return graph


def used_names(path: str, text: str, *, at_import_only: bool = False) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import and of every attribute chain on an imported name."""
    bound: dict[str, str] = {}
    package = path.split("/")[:-1]
    nodes = list(walk(ast.parse(text), at_import_only=at_import_only))
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
                head = alias.name.partition(".")[0]
                bound[alias.asname or head] = alias.name if alias.asname else head
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*parents, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{origin}.{alias.name}"
                bound[alias.asname or alias.name] = f"{origin}.{alias.name}"
    for node in nodes:
        if isinstance(node, ast.Attribute) and (chain := dotted(node)):
            head, _, rest = chain.partition(".")
            if head in bound:
                yield node.lineno, f"{bound[head]}.{rest}"


def walk(node: ast.AST, *, at_import_only: bool) -> Iterator[ast.AST]:
    """Every node below, without blocks for type checkers; at_import_only also leaves out function bodies."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            continue
        if at_import_only and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        yield child
        yield from walk(child, at_import_only=at_import_only)


def dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (head := dotted(node.value)):
        return f"{head}.{node.attr}"
    return None


def is_within(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@pytest.fixture(scope="module")
def sources() -> Sources:
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def test_every_import_keeps_to_its_fence(sources: Sources) -> None:
    assert "\n".join(breaches(sources)) == ""


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_of_a_package_import_each_other_in_one_direction(sources: Sources, package: str) -> None:
    assert " -> ".join(cycle(sources, package)) == ""


def test_planning_imports_nothing_heavy(sources: Sources) -> None:
    assert "\n".join(heavy_imports(sources)) == ""


@pytest.mark.parametrize(
    ("path", "text", "fenced"),
    [
        ("staging/pool.py", "import rig", "rig"),
        ("staging/pool.py", "def f():\n    from rig.ops import Param", "rig"),
        ("staging/kernels.py", "import rig.ops", "rig"),
        ("staging/backends/cpu.py", "import triton.language as tl", "triton"),
        ("rig/cluster_nodes.py", "from triton import jit", "triton"),
        ("rig/worker.py", "def f():\n    import ray", "ray"),
        ("staging/backends/sim.py", "import ray.util", "ray"),
        ("staging/fence.py", "import torch\ntorch.cuda.synchronize()", "torch.cuda"),
        ("staging/fence.py", "import torch as t\nx: t.cuda.Event", "torch.cuda"),
        ("staging/fence.py", "from torch import cuda", "torch.cuda"),
        ("rig/targets/model.py", "from torch.cuda import Event", "torch.cuda"),
    ],
)
def test_a_planted_breach_is_found(path: str, text: str, fenced: str) -> None:
    assert [breach.rpartition(" ")[2] for breach in breaches({path: text})] == [fenced]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("rig/cluster_nodes.py", "import ray\nray.init()"),
        ("staging/kernels.py", "import triton"),
        ("staging/backends/cuda_uva.py", "import torch\ntorch.cuda.Event()"),
        ("rig/device.py", "import torch\ntorch.cuda.Event()"),
        ("rig/worker.py", "import staging\nimport rig.ops\nfrom torch import device\nfrom rayon import x"),
    ],
)
def test_a_permitted_import_is_left_alone(path: str, text: str) -> None:
    assert breaches({path: text}) == []


@pytest.mark.parametrize(
    "back", ["from staging import pool", "from . import pool", "def f():\n    import staging.pool"]
)
def test_a_planted_cycle_is_found(back: str) -> None:
    sources = {
        "staging/__init__.py": "",
        "staging/pool.py": "from staging.fence import Fence",
        "staging/fence.py": back,
    }
    assert cycle(sources, "staging") == ["staging.fence", "staging.pool", "staging.fence"]


def test_an_import_for_type_checkers_alone_makes_no_cycle() -> None:
    back = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from staging import pool"
    assert cycle({"staging/pool.py": "import staging.fence", "staging/fence.py": back}, "staging") == []


def test_a_planted_heavy_import_is_found_through_another_module() -> None:
    sources = {"rig/plan.py": "from rig import stats", "rig/stats.py": "import torch"}
    assert heavy_imports(sources) == ["rig/plan.py: torch through rig.stats"]
    assert heavy_imports({"rig/plan.py": "def f():\n    import torch"}) == []
