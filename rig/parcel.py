"""A folder in pieces, as lines of text, for a way home that carries nothing but a job's log.

`python -m rig.parcel FOLDER INDEX` prints piece INDEX as one line; `receive` asks for one after the other and puts the
folder together. A piece is made from the folder alone, so nothing is left behind where it comes from.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

PIECE_BYTES = 32 << 20  # before compression, which records shrink under by ten
MARK = "RIG-PIECE"
EXIT_NO_FOLDER = 4


class Damaged(Exception):
    """What arrived is no piece, or not of the folder that the first one came from."""


class Piece(NamedTuple):
    """One piece: names and sizes of all files of the folder, and some of their bytes, end to end."""

    files: tuple[tuple[str, int], ...]
    data: bytes


def receive(ask: Callable[[int], str], folder: Path, *, piece_bytes: int = PIECE_BYTES) -> int:
    """Write below `folder` what `ask` gives, piece by piece; returns the bytes. `Damaged` if the pieces do not fit."""
    first = decode(ask(0))
    total = sum(size for _, size in first.files)
    for name, _ in first.files:
        if name.startswith("/") or ".." in PurePosixPath(name).parts or "\\" in name:
            raise Damaged(f"a file named {name!r} does not belong into the run's folder")
    data = _all_data(first, ask, num_pieces=num_pieces(total, piece_bytes))
    pending = b""
    for name, size in first.files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            while size:
                pending = pending or next(data)
                file.write(pending[:size])
                pending, size = pending[size:], max(0, size - len(pending))
    return total


def encode(folder: Path, index: int, *, piece_bytes: int = PIECE_BYTES) -> str:
    """Piece `index` of the regular files below `folder`, as one line."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    files = tuple((path.relative_to(folder).as_posix(), path.stat().st_size) for path in paths)
    begin, data, at = index * piece_bytes, bytearray(), 0
    for path, (_, size) in zip(paths, files, strict=True):
        if at < begin + piece_bytes and at + size > begin:
            with path.open("rb") as file:
                file.seek(max(0, begin - at))
                data += file.read(min(at + size, begin + piece_bytes) - max(at, begin))
        at += size
    body = zlib.compress(json.dumps(files).encode() + b"\n" + bytes(data))
    return f"{MARK} {hashlib.sha256(body).hexdigest()} {base64.b64encode(body).decode()}"


def decode(text: str) -> Piece:
    """The piece in a log that ends with it; `Damaged` if there is none, or if it was cut."""
    line = next((line for line in reversed(text.splitlines()) if line.startswith(f"{MARK} ")), "")
    try:
        _, digest, packed = line.split(" ")
        body = base64.b64decode(packed, validate=True)
        if hashlib.sha256(body).hexdigest() != digest:
            raise ValueError("its checksum is another")
        head, _, data = zlib.decompress(body).partition(b"\n")
        return Piece(tuple((str(name), int(size)) for name, size in json.loads(head)), data)
    except (ValueError, zlib.error) as error:
        raise Damaged(f"a piece did not arrive whole: {error}") from None


def num_pieces(total: int, piece_bytes: int = PIECE_BYTES) -> int:
    """How many pieces a folder of `total` bytes has; an empty one has one."""
    return max(1, -(-total // piece_bytes))


def _all_data(first: Piece, ask: Callable[[int], str], *, num_pieces: int) -> Iterator[bytes]:
    yield first.data
    for index in range(1, num_pieces):
        piece = decode(ask(index))
        if piece.files != first.files:
            raise Damaged("the folder changed while it was read")
        yield piece.data
    raise Damaged("the pieces hold fewer bytes than the files have")


if __name__ == "__main__":
    there = Path(sys.argv[1]).expanduser()
    if not there.is_dir():
        print(f"{there}: no such folder")
        sys.exit(EXIT_NO_FOLDER)
    print(encode(there, int(sys.argv[2])))
