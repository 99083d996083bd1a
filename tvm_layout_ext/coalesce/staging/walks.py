"""The shared-memory tile between a load and a store that want different orders.

A block of threads reads a box of elements in the order of the load and writes it in the order of
the store. Both ways are blocked layouts. On its way in a warp goes along rows of the load. On its
way out, lanes go along the store until they fill one or two lines, then along the load; elements
narrower than a bank go in groups along the load, a word at a time, and the thread that has such
groups for several places of the store turns them round in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from ...gpu.hardware import BANK_BYTES, LINE_BYTES, WARP_SIZE
from ...layout import BlockedLayout

#: Bytes of an output row that the stores of a warp cover where a tile is full: two lines, by 16
#: lanes of 16 bytes and 2 rows. An H200 (driver 580.159.04) transposed 16384 x 16384 f32 at 0.975
#: of the best copy so, and at 0.970 with one line by 8 lanes and 4 rows.
WIDE_ROW_BYTES = 256
#: Bytes of a row of the tile along the store, and along a load, by the element's: two lines, so
#: that DRAM pages are left less often. An H200 moved 16384 x 16384 f16 at 0.96 of a copy with
#: 256 and 256, at 0.92 with 256 and 128; i8 at 0.95 with 128 and 256, at 0.93 with 128 and 128.
_STORE_BYTES = {1: 128, 2: 256, 4: 256, 8: 512}
_LOAD_BYTES = {1: 256, 2: 256, 4: 256, 8: 256}


def ceil_power(value: int) -> int:
    """Least power of two that is not less."""
    return 1 << max(0, (value - 1).bit_length())


def box(
    extents: Sequence[int | None], orders: Sequence[Sequence[int]], element_bytes: Sequence[int]
) -> list[int]:
    """Choose the box that a block of threads moves: a power of two along each dim.

    Parameters
    ----------
    extents : sequence of int or None
        Of every dim; None where symbolic.
    orders : sequence of sequences of int
        Dims of each access, the innermost last; the store's first.
    element_bytes : sequence of int
        Of each access.

    Examples
    --------
    >>> box([16384, 16384], [[0, 1], [1, 0]], [4, 4])
    [64, 64]
    >>> box([64, 3136, 256], [[0, 1, 2], [0, 2, 1]], [2, 2])
    [1, 64, 64]

    3,136 is a multiple of 64, and not of 128: tiles of half the rows fill.
    """
    tile = _box(extents, orders, element_bytes, 1)
    half = _box(extents, orders, element_bytes, 2)
    return half if _rest(extents, tile) and not _rest(extents, half) else tile


def _rest(extents: Sequence[int | None], tile: Sequence[int]) -> bool:
    """Whether a tile at the end would not be full."""
    return any(n is not None and n % part for n, part in zip(extents, tile, strict=True))


def _box(
    extents: Sequence[int | None],
    orders: Sequence[Sequence[int]],
    element_bytes: Sequence[int],
    part_of: int,
) -> list[int]:
    tile = [1] * len(extents)
    for position, (order, size) in enumerate(zip(orders, element_bytes, strict=True)):
        wanted = (_LOAD_BYTES if position else _STORE_BYTES)[size] // size // part_of
        for dim in reversed(order):
            extent = extents[dim]
            part = wanted if extent is None else min(wanted, ceil_power(extent))
            tile[dim] = max(tile[dim], part)
            wanted = -(-wanted // part)
            if wanted == 1:
                break
    return tile


@dataclass(frozen=True)
class TileWalk:
    """How threads go over a tile.

    Examples
    --------
    >>> walk = TileWalk((1, 4), ((1, 8), (0, 4), (1, 2), (0, 16)))
    >>> walk.factors(0), walk.factors(1)
    ([16, 4, 1], [2, 8, 4])
    >>> walk.places(2)[:10].tolist()
    [[0, 0], [0, 4], [0, 8], [0, 12], [0, 16], [0, 20], [0, 24], [0, 28], [1, 0], [1, 4]]
    """

    unit: tuple[int, ...]  #: Elements along each dim that a thread takes at once
    #: Dim and count of each step in which lanes, then warps, then rounds go on over the tile, in
    #: units.
    pieces: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, layout: BlockedLayout, tile: Sequence[int]) -> TileWalk:
        """Go over a tile as a blocked layout does."""
        left = [n // u for n, u in zip(tile, layout.size_per_thread, strict=True)]
        pieces: list[tuple[int, int]] = []
        for counts in (layout.threads_per_warp, layout.warps_per_cta, list(left)):
            for dim in layout.order:
                count = min(counts[dim], left[dim])
                if count > 1:
                    pieces.append((dim, count))
                    left[dim] //= count
        return cls(tuple(layout.size_per_thread), tuple(pieces))

    @property
    def units(self) -> int:
        """Units of the whole tile."""
        return prod(count for _, count in self.pieces)

    def factors(self, dim: int) -> list[int]:
        """Sizes into which the tile falls along a dim, the innermost last."""
        counts = [count for other, count in self.pieces if other == dim]
        return [*reversed(counts), self.unit[dim]]

    def places(self, rank: int) -> np.ndarray:
        """First element of each unit, in the order of the walk: a fixed array of (unit, dim)."""
        return _places(self, rank)


# A walk is held against dozens of layouts in a row.
@lru_cache(maxsize=16)
def _places(walk: TileWalk, rank: int) -> np.ndarray:
    found = np.zeros((1, rank), np.int64)
    reached = list(walk.unit)
    for dim, count in walk.pieces:
        step = np.zeros((count, 1, rank), np.int64)
        step[:, 0, dim] = np.arange(count) * reached[dim]
        found = (step + found).reshape(-1, rank)
        reached[dim] *= count
    found.setflags(write=False)
    return found


def load_walk(tile: Sequence[int], order: Sequence[int], vector: int, threads: int) -> TileWalk:
    """Go over a tile in the order of the load.

    Parameters
    ----------
    tile : sequence of int
        Powers of two, in the order of the store.
    order : sequence of int
        Dims of the load, the innermost last.
    vector : int
        Neighbours along the innermost that a thread loads at once.
    threads : int
        Threads that share out the tile; a power of two.

    Examples
    --------
    >>> load_walk([64, 64], [1, 0], 4, 256).pieces
    ((0, 16), (1, 2), (1, 8), (1, 4))
    """
    sizes = [tile[dim] for dim in order]
    unit = [1] * len(order)
    unit[-1] = vector
    fastest_first = list(reversed(range(len(order))))
    layout = BlockedLayout.covering(sizes, unit, fastest_first, max(1, threads // WARP_SIZE))
    return _by_dim(TileWalk.of(layout, sizes), order, len(tile))


def _by_dim(walk: TileWalk, order: Sequence[int], rank: int) -> TileWalk:
    unit = [1] * rank
    for dim, size in zip(order, walk.unit, strict=True):
        unit[dim] = size
    return TileWalk(tuple(unit), tuple((order[at], count) for at, count in walk.pieces))


def store_walk(
    tile: Sequence[int],
    group_dim: int,
    *,
    vector: int,
    group: int,
    size: int,
    threads: int,
    row_bytes: int = LINE_BYTES,
) -> TileWalk:
    """Go over a tile in the order of the store, which is that of its dims.

    Parameters
    ----------
    tile : sequence of int
        Powers of two.
    group_dim : int
        Innermost dim of the load.
    vector : int
        Elements that the store takes at once.
    group : int
        Elements of the load that fill a bank.
    size : int
        Bytes of an element of the store.
    threads : int
        Threads that share out the tile; a power of two.
    row_bytes : int
        Bytes along the store that the lanes of a warp fill before they go along the load.

    Examples
    --------
    A warp's patch is 8 vectors, 128 bytes, along the store by 4 along the load:

    >>> store_walk([64, 64], 0, vector=4, group=1, size=4, threads=256).pieces
    ((1, 8), (0, 4), (1, 2), (0, 4), (0, 4))
    >>> store_walk([64, 128], 0, vector=8, group=2, size=2, threads=256).pieces
    ((1, 8), (0, 4), (1, 2), (0, 4), (0, 2))
    """
    rank, last = len(tile), len(tile) - 1
    unit = [1] * rank
    unit[group_dim] = min(group, tile[group_dim])
    unit[last] = min(vector, tile[last])
    others = [dim for dim in reversed(range(rank)) if dim not in (last, group_dim)]
    order = list(dict.fromkeys([last, group_dim, *others]))
    patch = list(tile)
    patch[last] = _line_lanes(tile, unit[last], size, row_bytes) * unit[last]
    lanes = BlockedLayout.covering(patch, unit, order, 1).threads_per_warp
    warps, left = [1] * rank, max(1, threads // WARP_SIZE)
    for dim in [last, *others, group_dim]:
        warps[dim] = min(left, max(1, tile[dim] // (unit[dim] * lanes[dim])))
        left //= warps[dim]
    warps[group_dim] *= left
    return TileWalk.of(BlockedLayout(unit, lanes, warps, order), tile)


def _line_lanes(tile: Sequence[int], vector: int, size: int, row_bytes: int) -> int:
    """Lanes along the store: as many as fill so many bytes, if the tile is as wide."""
    return min(WARP_SIZE, max(1, row_bytes // (vector * size)), tile[-1] // vector)


def widest_load(
    tile: Sequence[int],
    vector: int,
    group: int,
    *,
    store: int,
    store_size: int,
    size: int,
    row_bytes: int = LINE_BYTES,
) -> int:
    """Elements that a thread may put down at once so that reading them back meets every bank once.

    A phase of the reads takes several places along the store, and so of each only as many groups
    of the load as it has lanes left. They must make up whole vectors.

    Parameters
    ----------
    tile : sequence of int
        Powers of two, in the order of the store.
    vector : int
        Elements that the load can take at once.
    group : int
        Elements of the load that fill a bank.
    store : int
        Elements that the store takes at once.
    store_size, size : int
        Bytes of an element of the store, of the load.
    row_bytes : int
        Bytes along the store that the lanes of a warp fill.

    Examples
    --------
    >>> widest_load([64, 64], 4, 1, store=4, store_size=4, size=4)
    4
    >>> widest_load([64, 64], 4, 1, store=4, store_size=4, size=4, row_bytes=256)
    2
    >>> widest_load([64, 64], 4, 1, store=1, store_size=4, size=4)
    1
    """
    phase = WARP_SIZE * BANK_BYTES // max(BANK_BYTES, group * size)
    return min(vector, max(1, phase // _line_lanes(tile, store, store_size, row_bytes)) * group)
