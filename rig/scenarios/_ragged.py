"""Ragged writes: lengths at the edges of chunks and rows, disjoint within an apply unless asked otherwise."""

from __future__ import annotations

import random
from collections.abc import Iterator

from rig.ops import Op, Stage, StageElem

LENGTHS = (0, 1, 2, 3, 7, 8, 9, 32, 1023, 1024, 1025, 2048)


class Ragged:
    """Draws the writes of one tensor. `overlap` lets them share elements within an apply."""

    def __init__(
        self,
        name: str,
        *,
        rows: int,
        cols: int,
        rng: random.Random,
        via: list[str],
        overlap: bool = False,
        elements: bool = True,
    ) -> None:
        self.name, self.rows, self.cols, self.rng = name, rows, cols, rng  # rows = 0: one-dimensional
        self.via, self.overlap, self.elements = via, overlap, elements
        self._taken: dict[int, list[tuple[int, int]]] = {}
        self._count = 0

    def applied(self) -> None:
        """The next writes belong to the next apply."""
        self._taken.clear()

    def writes(self, count: int) -> Iterator[Op]:
        """Up to `count` writes; what finds no free place is left out."""
        for _ in range(count):
            self._count += 1
            if self.elements and self.rng.random() < 0.25:
                yield from self._element()
            else:
                yield from self._write()

    def out_of_bounds(self, *, far: bool) -> Iterator[Op]:
        """Calls that must raise and stage nothing; where one is accepted, all but the far ones land in the tensor."""
        name, width = self.name, self.cols
        if self.rows > 1 and width > 2:
            row = self.rng.randrange(self.rows - 1)
            yield Stage(name=name, row=row, start=width - 1, length=3, beyond="bounds")
            yield Stage(name=name, row=row + 1, start=-2, length=2, beyond="bounds")
        if far:
            yield Stage(name=name, row=self.rows or width, start=0, length=1, beyond="bounds")
            yield Stage(name=name, row=0, start=width - 1, length=2, beyond="bounds")
            yield Stage(name=name, row=-1, start=0, length=1, beyond="bounds")
            yield StageElem(name=name, row=self.rows or width, beyond="bounds")

    def _write(self) -> Iterator[Op]:
        rng = self.rng
        row = rng.choice((0, self.rows - 1, rng.randrange(self.rows))) if self.rows else 0
        length = min(self.cols, rng.choice((*LENGTHS, self.cols, rng.randint(1, self.cols))))
        start = rng.choice((0, self.cols - length, rng.randint(0, self.cols - length)))
        beyond = self._take(row, start, length)
        if beyond is None:
            return
        if not self.rows:  # element index + start, however it is split
            row = rng.randint(0, start)
            start -= row
        via = self.via[self._count % len(self.via)]
        yield Stage(name=self.name, row=row, start=start, length=length, via=via, beyond=beyond)

    def _element(self) -> Iterator[Op]:
        place = self.rng.randrange(self.rows or self.cols)
        beyond = self._take(place, 0, 1) if self.rows else self._take(0, place, 1)
        if beyond is not None:
            yield StageElem(name=self.name, row=place, beyond=beyond)

    def _take(self, row: int, start: int, length: int) -> str | None:
        """Claim elements of a row: "" if they were free, "overlap" if sharing is wanted, None if it is not."""
        spans = self._taken.setdefault(row, [])
        shared = any(start < stop and first < start + length for first, stop in spans)
        if shared and not self.overlap:
            return None
        spans.append((start, start + length))
        return "overlap" if shared else ""
