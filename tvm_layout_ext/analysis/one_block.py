"""Ragged tensors that fit into one block's shared memory, and move each of their sectors once.

Where rows of neither side begin at sectors, two elements of one sector of the load lie in two
sectors of the store, which share elements with others, and so on: all sectors hang together, and
only a block that holds the whole tensor moves each of them once. Both its walks go over the tensor
as over one range, in requests that begin at sectors, so a request may end one row and begin the
next. There the banks must not meet either, and that is what :mod:`.digit_search` finds a layout
for. Requests have fewer lanes than a warp, down to one sector, if nothing else helps: for 32
elements of 4 bytes across two rows, for instance, rows and columns would have to be inverse to each
other modulo 32; for 16 nearly any lengths do.

The fewest sectors are mostly not the least time: a GPU whose other multiprocessors idle waits
longer for one block than for some percent more sectors (:data:`_MOST_ELEMENTS` has the numbers).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import gcd, lcm, prod

import numpy as np

from ..hardware import (
    BANK_BYTES,
    MULTIPROCESSORS,
    SECTOR_BYTES,
    STATIC_SHARED_BYTES,
    WARP_SIZE,
)
from .digit_search import find_layout
from .shared_tile import SharedTile
from .staging import Walk, ceil_power
from .whole_rows import box_walk

__all__ = ["OneBlock", "costs_no_time", "moved_sectors", "one_block"]

#: Threads of a block, where nobody asks for fewer: the more of a tensor that needs dynamic memory.
_THREADS, _MOST_THREADS = 512, 1024
#: Draws of layouts for the narrowest requests, and for those that have more lanes than these.
_DRAWS, _FIRST_DRAWS = 160, 2
#: Bytes and warps that a slab should have.
_SLAB_BYTES, _MANY_WARPS = 16 << 10, 8
#: Steps of a thread: 1,024 threads take 227 sectors each of the most that a block may have.
_MOST_STEPS = 256
#: Elements of a thread up to which slabs take no longer than tiles if there are as many as
#: multiprocessors. On an H200 (``benchmarks/results/h200_one_block.json``) 1,024 slabs of 100x100
#: floats, 12.5 elements a thread, took 25.4 us, and 28.0 in tiles; but 64 of them 3.15 and 2.86,
#: and 64 slabs of 16x33x65 halves, 71.5 elements a thread, 33.7 and 4.59.
_MOST_ELEMENTS = 16
#: The same for any number of blocks: tensors so small that a block does them at once. Of these none
#: was timed. One block with 16 elements a thread and more took 2.3 to 16 times as long as tiles:
#: 127x129 floats 4.85 and 2.09, 300x300 halves 41.2 and 2.53.
_FEW_ELEMENTS = 2


@dataclass(frozen=True)
class OneBlock:
    """How one block moves a whole tensor, or one of the slabs that it falls into.

    Attributes
    ----------
    tile : tuple of int
        The tensor's extents, or fewer along its first dim.
    into, out : Walk
        Over the tile, an element a lane.
    place : SharedTile
    threads : int
    """

    tile: tuple[int, ...]
    into: Walk
    out: Walk
    place: SharedTile
    threads: int


def costs_no_time(units: int, threads: int, blocks: int) -> bool:
    """Whether blocks that hold a tensor take no longer than blocks of tiles, as far as measured.

    Parameters
    ----------
    units : int
        Elements of a block.
    threads : int
        Of a block.
    blocks : int

    Examples
    --------
    >>> costs_no_time(10000, 800, 1024), costs_no_time(10000, 800, 64), costs_no_time(231, 512, 1)
    (True, False, True)
    """
    most = _MOST_ELEMENTS if blocks >= MULTIPROCESSORS else _FEW_ELEMENTS
    return units <= most * threads


@lru_cache(maxsize=256)
def one_block(
    extents: tuple[int, ...],
    order: tuple[int, ...],
    size: int,
    stored: int,
    most: int | None = None,
    limit: int = STATIC_SHARED_BYTES,
    *,
    free: bool = False,
) -> OneBlock | None:
    """Plan a tensor as one tile, or as slabs of one; None if none is found without conflicts.

    Parameters
    ----------
    extents : tuple of int
        In the order of the store.
    order : tuple of int
        Dims of the load, the innermost last.
    size, stored : int
        Bytes of an element of the load, and of the store.
    most : int, optional
        Most threads of a block; by default 512, and 1,024 where the tensor needs more than the
        static shared memory of a block.
    limit : int
        Bytes of shared memory of a block.
    free : bool
        Whether only plans are wanted that cost no time (:func:`costs_no_time`).

    Examples
    --------
    >>> plan = one_block((100, 33), (1, 0), 4, 4)
    >>> plan.into.lanes, plan.out.lanes, plan.threads, str(plan.place.modes)
    (16, 16, 512, '33:101;100:1')
    """
    if len(order) < 2:
        return None
    tiles = [*_slabs(extents, order, size, stored, limit), extents]
    fitting = (tile for tile in tiles if prod(tile) * size <= limit)
    found = (_plan(tile, extents, order, (size, stored), most, limit, free) for tile in fitting)
    return next((plan for plan in found if plan is not None), None)


def _plan(
    tile: tuple[int, ...],
    extents: tuple[int, ...],
    order: tuple[int, ...],
    sizes: tuple[int, int],
    most: int | None,
    limit: int,
    free: bool,
) -> OneBlock | None:
    """Plan one tile, its requests as wide as a layout without conflicts is found for."""
    size = sizes[0]
    usual = _THREADS if prod(tile) * size <= STATIC_SHARED_BYTES else _MOST_THREADS
    into = box_walk(tile, order, 1)
    out = box_walk(tile, range(len(tile)), 1)
    pairs = _lanes(*sizes)
    blocks = -(-extents[0] // tile[0])
    for lanes in pairs:
        warps, more = (
            _warps(into.units, lanes, (most or n) // WARP_SIZE, whole=tile == extents)
            for n in (usual, _MOST_THREADS)
        )
        warps = warps if warps >= _MANY_WARPS else more
        if into.units > _MOST_STEPS * warps * min(lanes):
            continue
        if free and not costs_no_time(into.units, warps * WARP_SIZE, blocks):
            continue
        walks = [replace(w, lanes=n) for w, n in zip((into, out), lanes, strict=True)]
        draws = _DRAWS if lanes == pairs[-1] else _FIRST_DRAWS
        place = find_layout(tile, order, walks, size, limit, draws)
        if place is not None:
            return OneBlock(tile, walks[0], walks[1], place, warps * WARP_SIZE)
    return None


def _warps(units: int, lanes: tuple[int, int], most: int, *, whole: bool) -> int:
    """Warps that share out a tile; 0 if none can.

    Of a slab they must leave no rest: it would reach into the next slab, and TVM would load it.
    """
    if whole:
        return min(most, ceil_power(-(-units // min(lanes))))
    if any(units % n for n in lanes):
        return 0
    requests = gcd(*(units // n for n in lanes))
    return max((n for n in range(1, most + 1) if requests % n == 0), default=0)


def _slabs(
    extents: tuple[int, ...], order: Sequence[int], size: int, stored: int, limit: int
) -> list[tuple[int, ...]]:
    """Cut the dim that is the outermost of both sides where both are at the end of a sector.

    The best first: those that eight warps can share out, and of these one of about 16 KB.

    >>> _slabs((64, 33, 7), (0, 2, 1), 4, 4, 49152)[0], _slabs((33, 7), (1, 0), 4, 4, 49152)
    ((16, 33, 7), [])
    """
    if order[0] != 0:
        return []
    row = prod(extents[1:])
    least = lcm(*(SECTOR_BYTES // gcd(SECTOR_BYTES, row * n) for n in (size, stored)))
    lanes = (max(1, SECTOR_BYTES // size), max(1, SECTOR_BYTES // stored))
    found = []
    for rows in (least << shift for shift in range(6)):
        taken = rows * row * size
        if rows < extents[0] and taken <= max(min(STATIC_SHARED_BYTES, limit), least * row * size):
            warps = min(_MANY_WARPS, _warps(rows * row, lanes, _MANY_WARPS, whole=False))
            found.append((-warps, abs(taken - _SLAB_BYTES), (rows, *extents[1:])))
    return [tile for _, _, tile in sorted(found)][:2]


def _lanes(size: int, stored: int) -> list[tuple[int, int]]:
    """Lanes of the requests of load and store that are whole sectors, most first.

    Of 8-byte elements 16 lanes fill the banks as 32 do.
    """
    options = (32, 16, 8) if size < 2 * BANK_BYTES else (32, 8, 4)
    into, out = (
        [lanes for lanes in options if lanes * n % SECTOR_BYTES == 0] for n in (size, stored)
    )
    pairs = [(one, other) for one in into for other in out]
    return sorted(pairs, key=lambda pair: (-pair[0] * pair[1], -min(pair)))


def moved_sectors(
    walk: Walk, tile: Sequence[int], extents: Sequence[int], order: Sequence[int], size: int
) -> int:
    """Count the sectors that the requests of a walk over all tiles of a dense tensor move.

    Parameters
    ----------
    walk : Walk
    tile, extents : sequence of int
        In the order of the store.
    order : sequence of int
        Dims of the side, the innermost last.
    size : int
        Bytes of an element.

    Examples
    --------
    >>> moved_sectors(box_walk([7, 33], [1, 0], 1), [7, 33], [7, 33], [1, 0], 4)
    29
    """
    strides = np.ones(len(extents), np.int64)
    for inner, dim in zip(reversed(order), list(reversed(order))[1:], strict=False):
        strides[dim] = strides[inner] * extents[inner]
    places, unit = walk.places(len(extents)), walk.unit[order[-1]]
    others = [1 if dim == order[-1] else n for dim, n in enumerate(walk.unit)]
    found = 0
    for corner in product(*(range(0, n, t) for n, t in zip(extents, tile, strict=True))):
        for element in np.indices(others).reshape(len(extents), -1).T:
            at = places + element
            inside = ((at < tile) & (at + corner < extents)).all(axis=1)
            first = (at + corner) @ strides * size
            ends = np.stack([first, first + unit * size - 1], axis=1) // SECTOR_BYTES
            request = np.arange(len(at))[:, None] // walk.lanes
            keys = (request << 32 | ends)[inside]
            found += len(np.unique(keys))
    return found
