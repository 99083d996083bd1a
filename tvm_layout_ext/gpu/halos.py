"""The pixels that all places of a window read for a tile: the tile's, and its halo around them.

Places of a window read the same pixels again and again: of 3 by 3 each one nine times, of which
eight come out of L2. With a halo a box of 8 by 8 pixels is one of 10 by 10 in shared memory, and a
place is read from it by a descriptor of ``wgmma`` that begins as many rows later. That is legal
from any row on, and with any number of rows between eight pixels and the next eight: the swizzle
turns absolute addresses, and ``base_offset`` stays 0 (PTX ISA, "Asynchronous Warpgroup Level Matrix
Shared Memory Layout"; tried on an H200 for the swizzles of 128 and 64 bytes, at full rate).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import ceil, prod

from .warpgroups import BOX_ELEMENTS, WARPGROUP_ROWS

#: Rows of the swizzle's pattern, which an instruction reads at a distance from the next ones.
_GROUP = 8
#: How many times the pixels of the best boxes those with a halo may have, with those outside of the
#: result, and how many times less is copied, at least.
_MOST_OUTSIDE, _LEAST_SAVED = 1.25, 2


@dataclass(frozen=True)
class Halo:
    """A box of pixels with those around it that places of a window read."""

    box: tuple[int, ...]
    pitch: int  #: Rows of shared memory from eight pixels to the next eight
    offsets: tuple[int, ...]  #: Rows that each place is behind the first one
    outside: float = 1  #: How many times the pixels of other boxes those of all such are

    @property
    def rows(self) -> int:
        """Rows of shared memory that it takes."""
        return prod(self.box)


def best_halo(
    extents: Sequence[int], places: Sequence[int], reach: Sequence[tuple[int, int]]
) -> tuple[tuple[int, ...], Halo] | None:
    """The box of 64 pixels, of few outside of the result, whose halos have the fewest of all.

    None where none is legal, or copies much less. ``extents`` are those of the result. Of
    ``places`` in a window each dim moves along one of the pixels, by so many: ``reach``.

    Examples
    --------
    >>> best_halo((64, 56, 56), (3, 3), ((1, 1), (2, 1)))[1].box
    (1, 10, 10)
    """
    boxes = all_boxes(WARPGROUP_ROWS, (1,) * len(extents))

    def covered(box: tuple[int, ...]) -> int:
        return prod(ceil(n / size) * size for n, size in zip(extents, box, strict=True))

    least = min(map(covered, boxes), default=0)
    few = (box for box in boxes if covered(box) <= _MOST_OUTSIDE * least)
    found = {box: halo for box in few if (halo := _halo(box, places, reach))}
    if not found:
        return None
    box, halo = min(found.items(), key=lambda one: covered(one[0]) * one[1].rows)
    return box, replace(halo, outside=covered(box) / least)


def _halo(
    box: tuple[int, ...], places: Sequence[int], reach: Sequence[tuple[int, int]]
) -> Halo | None:
    """The halo of a box; None where its pixels do not lie as an instruction reads them."""
    wide = list(box)
    for (dim, step), extent in zip(reach, places, strict=True):
        wide[dim] += step * (extent - 1)
    pitches = [prod(wide[i + 1 :]) for i in range(len(box))]
    starts = [
        sum(at * pitch for at, pitch in zip(pixel, pitches, strict=True))
        for pixel in product(*map(range, box))
    ]
    groups = [starts[i : i + _GROUP] for i in range(0, len(starts), _GROUP)]
    runs = all(group == list(range(group[0], group[0] + _GROUP)) for group in groups)
    apart = {after[0] - before[0] for before, after in pairwise(groups)}
    offsets = tuple(
        sum(at * step * pitches[dim] for at, (dim, step) in zip(place, reach, strict=True))
        for place in product(*map(range, places))
    )
    halo = Halo(tuple(wide), min(apart), offsets)
    pays = _LEAST_SAVED * halo.rows <= WARPGROUP_ROWS * len(offsets)
    return halo if runs and len(apart) == 1 and pays and max(wide) <= BOX_ELEMENTS else None


def all_boxes(rows: int, steps: Sequence[int]) -> list[tuple[int, ...]]:
    """Every way to make so many pixels of powers of two."""
    if len(steps) == 1:
        return [(rows,)] if rows * steps[0] <= BOX_ELEMENTS else []
    made = []
    size = 1
    while size <= rows and size * steps[0] <= BOX_ELEMENTS:
        made += [(size, *rest) for rest in all_boxes(rows // size, steps[1:])]
        size *= 2
    return made
