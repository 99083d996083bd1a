"""Swizzles for more than two ways of access: a segment that several spans meet only in zero.

:func:`~tvm_layout_ext.layout.optimal_swizzle` has a writer and a reader, each with one span of
lanes, and a formula. With three spans there is none, and there need not be any segment. Here one is
grown a vector at a time: a vector is out if it lies in the sum of some span and of the segment so
far. Where no vector is left, another beginning is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..f2 import Columns, complement

#: Beginnings that are drawn before a search gives up.
_MOST_DRAWS = 32


def complement_segment(
    spans: Sequence[Sequence[int]], dimension: int, size: int, fixed: int = 0
) -> list[int] | None:
    """Find vectors whose span meets each of some spans only in zero.

    ``size`` independent vectors are wanted, zero in the coordinates of mask ``fixed``. Vectors of
    few coordinates come first; None if no such vectors are found.

    Examples
    --------
    Two bits of a 3x2-bit index go to the banks, whichever two of each span:

    >>> complement_segment([[1, 2], [4, 8], [1, 8]], 4, 2)
    [5, 10]
    """
    every = np.arange(1 << dimension)
    free = every & fixed == 0
    ones = sum(every >> bit & 1 for bit in range(dimension)) + 0 * every
    few_first = np.argsort(ones, kind="stable")
    random = np.random.default_rng(0)
    for draw in range(_MOST_DRAWS):
        order = few_first if draw == 0 else random.permutation(few_first)
        found = _grown(spans, free, order, size)
        if found is not None:
            return found
    return None


def _grown(
    spans: Sequence[Sequence[int]], free: np.ndarray, order: np.ndarray, size: int
) -> list[int] | None:
    every = np.arange(len(free))
    taken = [np.zeros(len(free), bool) for _ in spans] or [np.zeros(len(free), bool)]
    for mask in taken:
        mask[0] = True
    for mask, span in zip(taken, spans, strict=False):
        for vector in span:
            mask |= mask[every ^ vector]
    found: list[int] = []
    while len(found) < size:
        left = order[(free & ~np.any(taken, axis=0))[order]]
        if not len(left):
            return None
        found.append(int(left[0]))
        for mask in taken:
            mask |= mask[every ^ found[-1]]
    return found


def place_bits(segment: Sequence[int], vector: int, dimension: int) -> list[int]:
    """Where each coordinate goes in memory whose rows of banks are told apart by a segment.

    The lowest ``vector`` coordinates, which no vector of the segment has, stay the lowest bits of
    the offset. The offset of an index is the XOR of those of its bits.

    Examples
    --------
    >>> place_bits([0b101, 0b1010], 0, 4)
    [5, 10, 1, 2]
    """
    low = [1 << bit for bit in range(vector)]
    basis = [*low, *complement([*low, *segment], dimension), *segment]
    columns = Columns(basis)
    return [columns.solve(1 << bit) or 0 for bit in range(dimension)]
