"""Ragged tensors that fit into one block's shared memory, and move each of their sectors once.

Where rows of neither side begin at sectors, two elements of one sector of the load lie in two
sectors of the store, which share elements with others, and so on: all sectors hang together, and
only a block that holds the whole tensor moves each of them once. Both its walks go over the tensor
as over one range, in requests that begin at sectors, so a request may end one row and begin the
next. There the banks must not meet either, and that is what :mod:`.digit_search` finds a layout
for. Requests have fewer lanes than a warp, down to one sector, if nothing else helps: for 32
elements of 4 bytes across two rows, for instance, rows and columns would have to be inverse to each
other modulo 32; for 16 nearly any lengths do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod

import numpy as np

from ..hardware import BANK_BYTES, SECTOR_BYTES, STATIC_SHARED_BYTES, WARP_SIZE
from .digit_search import find_layout
from .shared_tile import SharedTile
from .staging import Walk, ceil_power
from .whole_rows import box_walk

__all__ = ["OneBlock", "moved_sectors", "one_block"]

#: Threads of a block, where nobody asks for fewer: the more of a tensor that needs dynamic memory.
_THREADS, _MOST_THREADS = 512, 1024
#: Draws of layouts for the narrowest requests, and for those that have more lanes than these.
_DRAWS, _FIRST_DRAWS = 160, 2
#: Steps of a thread: 1,024 threads take 227 sectors each of the most that a block may have.
_MOST_STEPS = 256


@dataclass(frozen=True)
class OneBlock:
    """How one block moves a whole tensor.

    Attributes
    ----------
    into, out : Walk
        Over the tensor, an element a lane.
    place : SharedTile
    threads : int
    """

    into: Walk
    out: Walk
    place: SharedTile
    threads: int


@lru_cache(maxsize=256)
def one_block(
    extents: tuple[int, ...],
    order: tuple[int, ...],
    size: int,
    stored: int,
    most: int | None = None,
    limit: int = STATIC_SHARED_BYTES,
) -> OneBlock | None:
    """Plan a tensor as one tile; None if none is found without conflicts.

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

    Examples
    --------
    >>> plan = one_block((100, 33), (1, 0), 4, 4)
    >>> plan.into.lanes, plan.out.lanes, plan.threads, str(plan.place.modes)
    (16, 16, 512, '33:101;100:1')
    """
    bytes_of_all = prod(extents) * size
    if bytes_of_all > limit or len(order) < 2:
        return None
    most = most or (_THREADS if bytes_of_all <= STATIC_SHARED_BYTES else _MOST_THREADS)
    into = box_walk(extents, order, 1)
    out = box_walk(extents, range(len(extents)), 1)
    pairs = _lanes(size, stored)
    for lanes in pairs:
        threads = WARP_SIZE * min(most // WARP_SIZE, ceil_power(-(-into.units // min(lanes))))
        if into.units * WARP_SIZE > _MOST_STEPS * threads * min(lanes):
            continue
        walks = [replace(w, lanes=n) for w, n in zip((into, out), lanes, strict=True)]
        draws = _DRAWS if lanes == pairs[-1] else _FIRST_DRAWS
        place = find_layout(extents, order, walks, size, limit, draws)
        if place is not None:
            return OneBlock(walks[0], walks[1], place, threads)
    return None


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
