"""Linear algebra over F2, the field of two elements, on vectors held as Python integers.

Bit ``i`` of the integer is coordinate ``i`` of the vector, and adding two vectors is XOR.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import xor


class Columns:
    """The columns of a matrix, brought to echelon form in the order given.

    A column that the earlier ones already span becomes *free*. :meth:`solve` gives free columns the
    coefficient 0, so equal columns are always answered by the first of them.
    """

    def __init__(self, columns: Iterable[int]) -> None:
        #: pivot bit -> (reduced vector with that lowest bit, mask of the columns that make it)
        self._rows: dict[int, tuple[int, int]] = {}
        #: Mask of the columns that the earlier ones span.
        self.free = 0
        for index, column in enumerate(columns):
            residue, used = self._reduce(column)
            if residue:
                self._rows[residue & -residue] = residue, used ^ (1 << index)
            else:
                self.free |= 1 << index

    @property
    def rank(self) -> int:
        """Dimension of what the columns span."""
        return len(self._rows)

    @property
    def pivots(self) -> int:
        """Mask of the coordinates that lead some vector of the span, lowest bit first."""
        return sum(self._rows)

    def _reduce(self, vector: int) -> tuple[int, int]:
        used = 0
        for pivot, (row, columns) in self._rows.items():
            if vector & pivot:
                vector ^= row
                used ^= columns
        return vector, used

    def spans(self, vector: int) -> bool:
        """Whether some sum of columns is ``vector``."""
        return self._reduce(vector)[0] == 0

    def solve(self, vector: int) -> int | None:
        """Find the columns whose sum is ``vector``, as a mask; None if there are none."""
        residue, used = self._reduce(vector)
        return None if residue else used


def combine(vectors: Sequence[int], mask: int) -> int:
    """Add the vectors whose bit is set in ``mask``."""
    return reduce(xor, (v for i, v in enumerate(vectors) if mask >> i & 1), 0)


def rank(vectors: Iterable[int]) -> int:
    """Compute the dimension of a span."""
    return Columns(vectors).rank


def intersection(first: Sequence[int], second: Sequence[int]) -> int:
    """Compute the dimension of the meet of two spans: dim(U) + dim(V) - dim(U + V)."""
    return rank(first) + rank(second) - rank([*first, *second])


def meet(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """List vectors that make up the meet of two spans."""
    columns = Columns([*first, *second])
    found = []
    for index, vector in enumerate(second, len(first)):
        if columns.free >> index & 1:
            # A sum of vectors of both: what it has of the second list goes to the other side.
            mask = columns.solve(vector) or 0
            found.append(vector ^ combine(second, mask >> len(first)))
    return [v for v in found if v]


def complement(vectors: Iterable[int], dimension: int) -> list[int]:
    """List the unit vectors that complete a span to the whole space, smallest first."""
    pivots = Columns(vectors).pivots
    return [1 << i for i in range(dimension) if not pivots >> i & 1]
