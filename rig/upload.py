"""What travels with a submitted job, as one zip archive: the code, the config, and the files that are targets.

Config and targets lie in `rig-submitted/` of the job's working folder, wherever they came from. The archive of the same
files has the same bytes, so a cluster that has it is not sent it again.
"""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path

from rig.errors import UsageError

LEFT_OUT = (
    *(".git", ".hg", ".svn", ".venv", "venv", "node_modules", "runs", "rig-runs", "__pycache__", "*.pyc", "*.egg-info"),
    *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".tox", ".nox", ".env", ".ray_token"),
)
SUBMITTED = "rig-submitted"
NBYTES_MAX = 100 << 20  # what a Ray job server takes in one request
_PACKAGES = ("rig", "staging")
_EPOCH = (1980, 1, 1, 0, 0, 0)


def write_archive(archive: Path, files: Mapping[str, Path]) -> int:
    """Zip `files` (name in the archive -> file); returns the archive's bytes. `UsageError` if it grows too large."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, path in sorted(files.items()):
            try:
                entry = zipfile.ZipInfo(name, _EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = (path.stat().st_mode & 0o777) << 16
                with path.open("rb") as source, packed.open(entry, "w") as target:
                    while block := source.read(1 << 20):
                        target.write(block)
            except OSError as error:
                raise UsageError(f"{path}: cannot be read ({error.strerror}), and it would be uploaded") from None
            if archive.stat().st_size > NBYTES_MAX:
                raise UsageError(_too_large(files))
    return archive.stat().st_size


def code(folder: Path | None) -> dict[str, Path]:
    """The code that a job needs: this rig and its library, or a working folder, to which they are added if it has
    none."""
    if folder is None:
        return _packages()
    if not folder.is_dir():
        raise UsageError(f"--working-dir {folder}: no such folder")
    files = {path.relative_to(folder).as_posix(): path for path in sorted(_files(folder))}
    return files if "rig/__main__.py" in files else files | _packages()


def is_left_out(path: Path) -> bool:
    """Whether a path, taken from the working folder, is among what is never uploaded."""
    return any(fnmatch(part, pattern) for part in path.parts for pattern in LEFT_OUT)


def _packages() -> dict[str, Path]:
    root = Path(__file__).resolve().parent.parent
    found = (path for package in _PACKAGES for path in (root / package).rglob("*") if path.is_file())
    return {name.as_posix(): root / name for path in found if not is_left_out(name := path.relative_to(root))}


def _files(folder: Path) -> Iterator[Path]:
    """The files of a folder that git does not ignore, or all where git does not know it; never what is left out."""
    names = _not_ignored(folder)
    found = _walk(folder) if names is None else (folder / name for name in names)
    return (path for path in found if not is_left_out(path.relative_to(folder)) and path.is_file())


def _not_ignored(folder: Path) -> list[str] | None:
    command = ["git", "-C", str(folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return None
    return [name for name in dict.fromkeys(told.stdout.split("\0")) if name]


def _walk(folder: Path) -> Iterator[Path]:
    """Without a look into what is left out, which may be large."""
    for path in folder.iterdir():
        if is_left_out(Path(path.name)):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path)
        else:
            yield path


def _too_large(files: Mapping[str, Path]) -> str:
    sizes = sorted(((path.stat().st_size, name) for name, path in files.items()), reverse=True)
    largest = ", ".join(f"{name} {size / 1e6:.0f} MB" for size, name in sizes[:3])
    return (
        f"the upload is larger than {NBYTES_MAX >> 20} MiB, the most a job server takes (largest: {largest}); name "
        "such files in .gitignore, or leave out --working-dir: then only rig and staging travel"
    )
