"""A worker's own copy of its records, on its own disk: `rig collect` fetches from it what the driver never got.

One file for each life of a seat's process. Each record is handed to the operating system before it travels, so it
survives the process, the driver and the link; there is no fsync, so it does not survive a power cut. A spool that is
full, or cannot be written, stops: what is made afterwards travels all the same, and the trouble becomes a record.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

FOLDER = "spools"  # inside a run's folder, where driver and workers share a machine
BYTES_MAX = 64 << 20  # of one spool; an assignment comes to some kilobytes


class Spool:
    """Appends to `path`, which is made with the first record. One thread calls it; it raises nothing."""

    def __init__(self, path: Path, *, bytes_max: int = BYTES_MAX) -> None:
        self.path = path
        self.trouble: str | None = None
        self._bytes_max = bytes_max
        self._file: int | None = None
        self._size = self._num = 0

    def keep(self, line: str) -> None:
        """Append one encoded record, whole or not at all."""
        data = line.encode() + b"\n"
        if self.trouble is not None:
            return
        if self._size + len(data) > self._bytes_max:
            self._stop(f"it is full, as it may take {self._bytes_max:,} bytes")
            return
        try:
            if self._file is None:
                self._file = self._open()
            written = 0
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError as error:
            self._stop(error.strerror or str(error))
            return
        self._size += len(data)
        self._num += 1

    def close(self, *, keep: bool) -> None:
        """Close the file, and remove it unless somebody may still want it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if not keep:
            self.path.unlink(missing_ok=True)
            if self.path.parent.name == FOLDER:
                with contextlib.suppress(OSError):  # another seat's spool is there
                    self.path.parent.rmdir()

    def _open(self) -> int:
        if self.path.parent.name == FOLDER:
            self.path.parent.mkdir(exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC  # never a file or link of others
        return os.open(self.path, flags, 0o600)

    def _stop(self, why: str) -> None:
        """Leave whole records behind, and say how many."""
        self.trouble = f"{self.path}: {why}; it holds the first {self._num} records"
        if self._file is not None:
            with contextlib.suppress(OSError):  # a cut-off line is dropped when it is read
                os.ftruncate(self._file, self._size)


def path_of(run: str, incarnation: str, *, folder: str | None = None) -> Path:
    """Where a process keeps its records: in `folder`, or else in the temp folder of its machine."""
    return Path(folder or temp_folder()) / f"{_stem(run)}{incarnation}.jsonl"


def spools_of(run: str, folder: Path) -> Iterator[Path]:
    """The spools of a run in a folder, by name."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        named = re.compile(re.escape(_stem(run)) + r"\w+\.jsonl")
        yield from sorted(path for path in folder.iterdir() if named.fullmatch(path.name) and path.is_file())


def temp_folder() -> Path:
    """A local cluster's own temp folder, else the machine's."""
    return Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir())


def _stem(run: str) -> str:
    return f"rig-spool-{run}-"
