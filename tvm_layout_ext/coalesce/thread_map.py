"""How the iterations of a block are spread over a GPU, as one value: mixed radix, level by level.

Every iterator of a block is a number, and a map reads its digits off: the lowest goes to the
elements of a vector, the next to lanes, then to warps, to a thread's registers, to blocks. A digit
is a :class:`Digit`; the parts of a map stand fastest first, in the order in which the digits of a
level make up its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from math import prod

import numpy as np

from ..errors import LayoutError
from ..gpu.hardware import WARP_SIZE
from ..layout import LinearLayout
from ..layout.linear import is_power_of_two, log2

#: Where a digit may go, the fastest first. ``register`` are steps of a thread that are unrolled,
#: ``step`` those of a loop that is not.
LEVELS = ("vector", "register", "lane", "warp", "block", "step")


@dataclass(frozen=True)
class Digit:
    """A digit of an iterator: which one, how many values it has, and what they go to."""

    iterator: int  #: Position of the iterator
    #: None for all that is left of the iterator; then no other part of it follows.
    count: int | None
    level: str  #: One of :data:`LEVELS`


@dataclass(frozen=True)
class ThreadMap:
    """Which iterations each thread does.

    Examples
    --------
    A warp takes 4 rows of 8 vectors, and 8 warps lie below each other:

    >>> lanes, warps = [(1, 8), (0, 4)], [(0, 8)]
    >>> rows = ThreadMap.of("ij", ("vector", [(1, 4)]), ("lane", lanes), ("warp", warps))
    >>> print(rows)
    vector j 4, lane j 8 i 4, warp i 8
    >>> rows.tile, rows.threads
    ((32, 32), 256)
    >>> rows.places("lane")[:10].tolist()
    [[0, 0], [0, 4], [0, 8], [0, 12], [0, 16], [0, 20], [0, 24], [0, 28], [1, 0], [1, 4]]
    """

    #: Of the iterators; ``i*j`` is one that walks ``i`` and ``j`` as if they were one loop.
    names: tuple[str, ...]
    parts: tuple[Digit, ...]  #: Fastest first

    @classmethod
    def of(
        cls, names: Sequence[str], *levels: tuple[str, Sequence[tuple[int, int | None]]]
    ) -> ThreadMap:
        """Make a map of levels with (iterator, count) pairs; counts of 1 are left out."""
        parts = [Digit(at, n, level) for level, pairs in levels for at, n in pairs if n != 1]
        return cls(tuple(names), tuple(parts))

    @classmethod
    def dealt(
        cls,
        names: Sequence[str],
        unit: Sequence[tuple[str, Sequence[tuple[int, int | None]]]],
        counts: Sequence[tuple[int, int]],
        threads: int,
        level: str = "block",
        rest: Sequence[tuple[int, int | None]] = (),
    ) -> ThreadMap:
        """Deal counts of iterators out, fastest first: to lanes, to warps, and then to registers.

        Counts and threads are powers of two. Before them stands what a thread takes at once, behind
        them what is left for a level.

        >>> counts = [(1, 16), (0, 64)]
        >>> print(ThreadMap.dealt("ij", [("vector", [(1, 4)])], counts, 256))
        vector j 4, lane j 16 i 2, warp i 8, register i 4
        """
        room = {"lane": min(WARP_SIZE, threads)}
        room["warp"] = threads // room["lane"]
        parts: dict[str, list[tuple[int, int | None]]] = {"lane": [], "warp": [], "register": []}
        for iterator, count in counts:
            left = count
            for own in room:
                part = min(left, room[own])
                parts[own].append((iterator, part))
                room[own] //= part
                left //= part
            parts["register"].append((iterator, left))
        return cls.of(names, *unit, *parts.items(), (level, rest))

    def __post_init__(self) -> None:
        open_ended: set[int] = set()
        for part in self.parts:
            if part.level not in LEVELS:
                raise LayoutError(
                    f"A thread map has the levels {', '.join(LEVELS)}, not {part.level}."
                )
            if not 0 <= part.iterator < len(self.names):
                raise LayoutError(
                    f"There is no iterator {part.iterator}; the map has {len(self.names)}."
                )
            if part.iterator in open_ended:
                raise LayoutError(
                    f"All that is left of {self.names[part.iterator]} is given away before its "
                    f"{part.level}."
                )
            if part.count is None:
                open_ended.add(part.iterator)
            elif part.count < 1:
                raise LayoutError(f"{self.names[part.iterator]} has a part of {part.count}.")
        lanes = self.count("lane")
        if lanes > WARP_SIZE:
            raise LayoutError(f"The map has {lanes} lanes; a warp has {WARP_SIZE}.")

    def of_iterator(self, iterator: int) -> tuple[Digit, ...]:
        """Digits of an iterator, the lowest first."""
        return tuple(part for part in self.parts if part.iterator == iterator)

    def count(self, *levels: str) -> int:
        """Values of all parts of some levels together; what is left over counts 1."""
        return prod(part.count or 1 for part in self.parts if part.level in levels)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.count("lane", "warp")

    @property
    def vector(self) -> int:
        """Elements of an instruction."""
        return self.count("vector")

    @property
    def tile(self) -> tuple[int, ...]:
        """Iterations that a block of threads does at once, by iterator."""
        inside = [p for p in self.parts if p.level not in ("block", "step")]
        return tuple(
            prod(part.count or 1 for part in inside if part.iterator == iterator)
            for iterator in range(len(self.names))
        )

    @property
    def unit(self) -> tuple[int, ...]:
        """Elements along each iterator that a thread takes at once: those before its lanes."""
        own = takewhile(lambda part: part.level in ("vector", "register"), self.parts)
        held = [1] * len(self.names)
        for part in own:
            held[part.iterator] *= part.count or 1
        return tuple(held)

    def strides(self) -> list[int]:
        """By how much each part moves its iterator."""
        reached = [1] * len(self.names)
        found = []
        for part in self.parts:
            found.append(reached[part.iterator])
            reached[part.iterator] *= part.count or 1
        return found

    def places(self, *levels: str) -> np.ndarray:
        """Iterations that the values of some levels begin at: an array of (value, iterator).

        The first level given runs fastest.
        """
        found = np.zeros((1, len(self.names)), np.int64)
        strides = self.strides()
        for level in levels:
            for part, stride in zip(self.parts, strides, strict=True):
                if part.level == level:
                    step = np.zeros((part.count or 1, 1, len(self.names)), np.int64)
                    step[:, 0, part.iterator] = np.arange(part.count or 1) * stride
                    found = (step + found).reshape(-1, len(self.names))
        return found

    def to_linear(self) -> LinearLayout:
        """The tile as a map from (register, lane, warp) to its iterators, vectors in registers.

        Raises LayoutError if a count is no power of two.
        """
        bases: dict[str, list[tuple[int, ...]]] = {"register": [], "lane": [], "warp": []}
        for part, stride in zip(self.parts, self.strides(), strict=True):
            if part.level in ("block", "step"):
                continue
            count = part.count or 1
            if not is_power_of_two(count):
                raise LayoutError(f"{self} has a part of {count}, which is no power of two.")
            level = "register" if part.level == "vector" else part.level
            for bit in range(log2(count)):
                at = [0] * len(self.names)
                at[part.iterator] = stride << bit
                bases[level].append(tuple(at))
        sizes = {f"dim{i}": size for i, size in enumerate(self.tile)}
        return LinearLayout.from_bases({**bases, "block": []}, sizes)

    def __str__(self) -> str:
        def text(part: Digit) -> str:
            return f"{self.names[part.iterator]} {part.count or 'rest'}"

        levels = groupby(self.parts, key=lambda part: part.level)
        return (
            ", ".join(f"{level} {' '.join(map(text, own))}" for level, own in levels)
            or "one thread"
        )
