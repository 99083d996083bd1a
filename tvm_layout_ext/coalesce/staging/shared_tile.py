"""Where the elements of a tile lie in shared memory, between its way in and its way out.

A tile that is a power of two along each dim lies as :func:`~tvm_layout_ext.layout.optimal_swizzle`
finds best. It is asked for the order of whole vectors, whose elements stay together: asked for
single elements it keeps conflicts away just as well, but splits the 16 bytes that a thread brings.
Where a warp reads only 2 words of each vector at once it is asked for that of halves.
Other tiles lie in rows, padded so that few rows meet in a bank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from ...gpu.banks import request_wavefronts
from ...gpu.hardware import BANK_BYTES, LINE_BYTES, MAX_ACCESS_BYTES, WARP_SIZE
from .swizzles import swizzled
from .walks import TileWalk, ceil_power

#: More conflicts than any tile has.
_ANY = 1 << 30


@dataclass(frozen=True)
class SharedTileLayout:
    """Where the elements of a tile lie in shared memory: by XOR, or in padded rows."""

    order: tuple[int, ...]  #: Dims of the load, the innermost last
    #: Where each bit of each index goes, the dims in this order; None for rows.
    images: list[list[int]] | None
    #: Elements from row to row, and so on outwards, likewise; for padded rows.
    strides: tuple[int, ...] = ()

    @property
    def swizzle(self) -> str | None:
        """The annotation that lays the buffer out so; None for padded rows.

        >>> [SharedTileLayout((0, 1), [[], bits]).swizzle for bits in ([1, 2], [])]
        [';1,2', 'none']
        """
        if self.images is None:
            return None
        if not any(self.images):
            return "none"
        return ";".join(",".join(map(str, bits)) for bits in self.images)

    def elements(self, tile: Sequence[int]) -> int:
        """Elements that a tile takes, given in the order of the store."""
        if self.images is not None:
            return prod(tile[dim] for dim in self.order)
        return self.strides[0] * tile[self.order[0]]

    @property
    def row(self) -> int:
        """Elements from row to row."""
        return self.strides[-2]

    def offsets(self, places: np.ndarray) -> np.ndarray:
        """Offsets of elements, given as an array of (..., dim)."""
        total = np.zeros(places.shape[:-1], np.int64)
        if self.images is None:
            for dim, stride in zip(self.order, self.strides, strict=True):
                total += places[..., dim] * stride
            return total
        for dim, bits in zip(self.order, self.images, strict=True):
            for bit, image in enumerate(bits):
                total ^= (places[..., dim] >> bit & 1) * image
        return total


def padded(tile: Sequence[int], order: Sequence[int], padding: int) -> SharedTileLayout:
    """Lay out a tile by rows of the load, some elements left free after each.

    >>> padded([33, 64], [1, 0], 2).strides
    (35, 1)
    """
    strides = [1]
    for dim in reversed(order[1:]):
        strides.insert(0, strides[0] * tile[dim] + (padding if len(strides) == 1 else 0))
    return SharedTileLayout(tuple(order), None, tuple(strides))


# A block is planned on trial, and again once the plan has won.
@lru_cache(maxsize=1 << 10)
def choose_shared_layout(
    tile: tuple[int, ...],
    order: tuple[int, ...],
    into: TileWalk,
    out: TileWalk,
    size: int,
    put: int | None = None,
) -> tuple[SharedTileLayout, int]:
    """Find the shared layout with the fewest bank conflicts, and count those that remain.

    It is a swizzle where that leaves none. Otherwise, and where the tile is no power of two, rows
    are padded by up to 128 bytes, whatever leaves fewest.

    Parameters
    ----------
    tile : tuple of int
        In the order of the store.
    order : tuple of int
        Dims of the load, the innermost last.
    into, out : TileWalk
        How the tile is filled and read.
    size : int
        Bytes of an element.
    put : int, optional
        Elements that a thread puts down at once, if not all that it brings at once.
    """
    best, least = None, _ANY
    for place in _layouts(tile, order, into, out, size, put):
        found = conflicts((into, out), tile, place, size, most=least, put=put)
        if found < least:
            best, least = place, found
        if least == 0:
            break
    assert best is not None
    return best, least


def _layouts(
    tile: tuple[int, ...],
    order: tuple[int, ...],
    into: TileWalk,
    out: TileWalk,
    size: int,
    put: int | None,
) -> Iterator[SharedTileLayout]:
    """List the swizzle, of a tile of powers of two, and rows padded by vectors up to a line."""
    if all(extent == ceil_power(extent) for extent in tile):
        yield SharedTileLayout(order, swizzled(tile, order, into, out, size, put))
    inner = order[-1]
    width = max(into.unit[inner], out.unit[inner], BANK_BYTES // size)
    width = min(width, MAX_ACCESS_BYTES // size)
    first = -tile[inner] % width
    for padding in range(first, first + max(width, LINE_BYTES // size) + 1, width):
        yield padded(tile, order, padding)


def conflicts(
    walks: Sequence[TileWalk],
    tile: Sequence[int],
    place: SharedTileLayout,
    size: int,
    most: int | None = None,
    put: int | None = None,
) -> int:
    """Count the wavefronts over the least possible in which walks meet shared memory.

    Parameters
    ----------
    walks : sequence of TileWalk
        How threads go over the tile.
    tile : sequence of int
        In the order of the store.
    place : SharedTileLayout
        Where elements lie. Those along the load's innermost dim that a thread takes at once are
        one request, all others of its unit have one each.
    size : int
        Bytes of an element.
    most : int, optional
        Stop counting there.
    put : int, optional
        Most elements of a request, along the load's innermost dim.
    """
    found = 0
    for starts, active, width in _requests(walks, tile, place, size, put):
        waves, least = request_wavefronts(starts * size, active, width * size, joins=False)
        found += int((waves - least)[active.any(axis=1)].sum())
        if most is not None and found >= most:
            break
    return found


def _requests(
    walks: Sequence[TileWalk],
    tile: Sequence[int],
    place: SharedTileLayout,
    size: int,
    put: int | None,
) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Offsets of the lanes of each request, which of them are in the tile, and their width."""
    inner, rank = place.order[-1], len(tile)
    for walk in walks:
        places = walk.places(rank)
        active = _by_request(np.all(places < np.array(tile), axis=1))
        width = min(walk.unit[inner], put or walk.unit[inner], MAX_ACCESS_BYTES // size)
        shape = [n // width if dim == inner else n for dim, n in enumerate(walk.unit)]
        step = np.array([width if dim == inner else 1 for dim in range(rank)])
        for element in np.indices(shape).reshape(rank, -1).T:
            offsets = _by_request(place.offsets(places + element * step))
            yield offsets, active, width


def _by_request(values: Any) -> np.ndarray:
    """Deal values out to the lanes of requests; lanes that are not there have zeros."""
    full = np.zeros(-(-len(values) // WARP_SIZE) * WARP_SIZE, values.dtype)
    full[: len(values)] = values
    return full.reshape(-1, WARP_SIZE)
