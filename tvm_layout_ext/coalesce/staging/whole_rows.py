"""Tiles that hold whole rows, for rows that are short and do not start at sectors.

A row of 33 floats takes 132 bytes, so almost every row begins inside of a sector. Read one by one,
rows ask twice for the sector that they share. A tile of 64 whole rows is one range of memory that
begins and ends at sectors; warps read it as if there were no rows. Such a tile is no power of two,
so no swizzle lays it out; rows are padded instead. Where rows are long there is no room for whole
ones, and each piece of one costs up to a sector more than its bytes fill.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

import numpy as np

from ...gpu.hardware import SECTOR_BYTES, WARP_SIZE
from .walks import TileWalk, ceil_power

#: Shared memory of a tile of whole rows; eight of them fill an SM's.
_MOST_BYTES = 24 << 10


@dataclass(frozen=True)
class TileSide:
    """The load or the store of a tile."""

    order: tuple[int, ...]  #: Dims that it depends on, the innermost last
    #: Elements by which each dim of the tile moves it; not an int where that is symbolic.
    steps: tuple[Any, ...]
    size: int  #: Bytes of an element
    piece: int  #: Elements of a row that a warp takes at once

    def is_dense(self, extents: Sequence[int | None]) -> bool:
        """Whether its elements follow each other without gaps."""
        reached = 1
        for dim in reversed(self.order):
            extent = extents[dim]
            if extent is None or not isinstance(self.steps[dim], int) or self.steps[dim] != reached:
                return False
            reached *= extent
        return True


def whole_rows(
    tile: Sequence[int], extents: Sequence[int], sides: Sequence[TileSide]
) -> list[tuple[list[int], list[bool]]]:
    """List the tiles of whole rows that move fewer sectors than a tile does, the fewest first.

    Parameters
    ----------
    tile : sequence of int
        Powers of two.
    extents : sequence of int
        Of the dims.
    sides : sequence of TileSide
        Dense ones.

    Returns
    -------
    list of tuple of list of int and list of bool
        Each tile, and which sides find their rows whole in it.

    Examples
    --------
    The transpose of 1000 rows of 33 floats; the columns are 4000 bytes, 125 sectors:

    >>> load, store = TileSide((1, 0), (1, 33), 4, 32), TileSide((0, 1), (1000, 1), 4, 32)
    >>> whole_rows([64, 64], [33, 1000], [load, store])
    [([33, 64], [True, False]), ([33, 64], [True, True])]
    """
    found = []
    for wanted in range(1 << len(sides)):
        chosen = [bool(wanted >> at & 1) for at in range(len(sides))]
        wide = list(tile)
        for side, whole in zip(sides, chosen, strict=True):
            if whole:
                wide = _widened(wide, extents, side)
        if prod(wide) * max(side.size for side in sides) > _MOST_BYTES and any(chosen):
            continue
        total = sum(
            sectors(side, extents, wide, whole=whole)
            for side, whole in zip(sides, chosen, strict=True)
        )
        found.append((total, wanted, wide, chosen))
    least = found[0][0]
    better = sorted((entry for entry in found if entry[0] < least), key=lambda entry: entry[:2])
    return [(wide, chosen) for _, _, wide, chosen in better]


def _widened(tile: Sequence[int], extents: Sequence[int], side: TileSide) -> list[int]:
    """Make inner dims whole until the pieces of a side begin and end at sectors."""
    wide = list(tile)
    step = side.size
    for at, dim in reversed(list(enumerate(side.order))):
        outer = [side.steps[other] * side.size for other in side.order[:at]]
        if all(stride % SECTOR_BYTES == 0 for stride in outer):
            needed = SECTOR_BYTES // gcd(SECTOR_BYTES, step)
            wide[dim] = min(max(wide[dim], needed), extents[dim])
            return wide
        wide[dim] = extents[dim]
        step *= extents[dim]
    return wide


def sectors(side: TileSide, extents: Sequence[int], tile: Sequence[int], *, whole: bool) -> int:
    """Count the sectors of 32 bytes that a side of all tiles moves.

    Parameters
    ----------
    side : Side
    extents, tile : sequence of int
        Elements of each dim, of the tensor and of one tile.
    whole : bool
        Warps walk over rows as over one range. Otherwise each row is cut where the tile ends, and
        there into pieces.

    Examples
    --------
    >>> load = TileSide((1, 0), (1, 33), 4, 32)
    >>> [sectors(load, [33, 1000], tile, whole=tile[0] == 33) for tile in ([64, 64], [33, 64])]
    [5875, 4125]
    """
    columns = extents[side.order[-1]]
    rows = prod(extents[dim] for dim in side.order[:-1])
    if whole:
        return -(-rows * columns * side.size // SECTOR_BYTES)
    width = tile[side.order[-1]]
    starts = np.array(
        [
            at
            for first in range(0, columns, width)
            for at in range(first, min(first + width, columns), side.piece)
        ]
    )
    ends = np.append(starts[1:], columns)
    row_starts = np.arange(min(rows, SECTOR_BYTES))[:, None] * columns * side.size
    first = (row_starts + starts * side.size) // SECTOR_BYTES
    last = (row_starts + ends * side.size - 1) // SECTOR_BYTES
    by_row = (last - first + 1).sum(axis=1)
    return int(by_row.sum() * (rows // len(by_row)) + by_row[: rows % len(by_row)].sum())


def box_walk(tile: Sequence[int], order: Sequence[int], vector: int) -> TileWalk:
    """Go over a tile as if it were one row: lanes, warps and rounds in its order of dims.

    >>> box_walk([33, 64], [1, 0], 1).pieces
    ((0, 33), (1, 64))
    """
    unit = [1] * len(tile)
    unit[order[-1]] = vector
    counts = [(dim, tile[dim] // unit[dim]) for dim in reversed(order)]
    return TileWalk(tuple(unit), tuple((dim, count) for dim, count in counts if count > 1))


def patch_walks(tile: Sequence[int], load_inner: int, vector: int, size: int) -> Iterator[TileWalk]:
    """List walks along the store whose warps go on along the load, in ever wider patches.

    There are none where both run along one dim.

    Parameters
    ----------
    tile : sequence of int
        In the order of the store.
    load_inner : int
        Innermost dim of the load.
    vector : int
        Neighbours along the store that a thread takes at once.
    size : int
        Bytes of an element of the store.

    Examples
    --------
    >>> [walk.pieces for walk in patch_walks([33, 64], 0, 4, 4)][:2]
    [((1, 16), (0, 2), (0, 17)), ((1, 8), (0, 4), (1, 2), (0, 9))]
    """
    last = len(tile) - 1
    if load_inner == last:
        return
    unit = [1] * len(tile)
    unit[last] = vector
    total = tile[last] // vector
    seen = set()
    for along in (32, 16, 8, 4, 2, 1):
        lanes = min(along, ceil_power(total))
        if lanes in seen or (lanes < total and lanes * vector * size % SECTOR_BYTES):
            continue
        seen.add(lanes)
        across = min(WARP_SIZE // lanes, tile[load_inner])
        counts = [
            (last, lanes),
            (load_inner, across),
            (last, -(-total // lanes)),
            (load_inner, -(-tile[load_inner] // across)),
            *((dim, tile[dim]) for dim in reversed(range(last)) if dim != load_inner),
        ]
        yield TileWalk(tuple(unit), tuple((dim, count) for dim, count in counts if count > 1))
