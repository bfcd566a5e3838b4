"""Where a config is looked for: a path, else a preset's name."""

from __future__ import annotations

from pathlib import Path

from rig.errors import UsageError, nearest


def find(name: str) -> Path:
    """The file `name` means: an existing path wins over a preset. `UsageError` says which presets there are."""
    path = Path(name)
    if not name:
        raise UsageError(f"'': no config named; expected a file or a preset, {nearest(name, presets())}")
    if path.exists() or path.suffix or path.name != name:
        return path  # reading it says what is wrong with it
    known = presets()
    if name not in known:
        raise UsageError(f"{name}: neither a file nor a preset; presets: {nearest(name, known)}")
    return known[name]


def presets() -> dict[str, Path]:
    """Name and file of every preset: the working folder's configs/, then the clone's, then the wheel's."""
    here = Path(__file__).resolve().parent
    found: dict[str, Path] = {}
    for folder in (Path("configs"), here.parent / "configs", here / "configs"):
        for path in sorted(folder.glob("*.yaml")):
            found.setdefault(path.stem, path)
    return found


def summary(path: Path) -> str:
    """The first comment line of a preset."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.lstrip("# ") if first.startswith("#") else ""
