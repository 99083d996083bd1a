"""Where the elements of a tile lie in shared memory, between its way in and its way out.

A tile that is a power of two along each dim lies as :func:`~tvm_layout_ext.layout.optimal_swizzle`
finds best. It is asked for the order of whole vectors, whose elements stay together: asked for
single elements it keeps conflicts away just as well, but splits the 16 bytes that a thread brings.
Where a warp reads only 2 words of each vector at once it is asked for that of halves.
Other tiles lie in rows, padded so that few rows meet in a bank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import numpy as np

from ...gpu.banks import request_wavefronts
from ...gpu.hardware import BANK_BYTES, LINE_BYTES, MAX_ACCESS_BYTES, WARP_SIZE
from .swizzles import swizzles
from .walks import TileWalk

__all__ = [
    "SharedTileLayout",
    "choose_shared_layout",
    "conflicts",
    "end_conflicts",
    "padded",
    "put_conflicts",
]

#: More conflicts than any tile has.
_ANY = 1 << 30


@dataclass(frozen=True)
class SharedTileLayout:
    """Where the elements of a tile lie in shared memory: by XOR, or in padded rows.

    Attributes
    ----------
    order : tuple of int
        Dims of the load, the innermost last.
    images : list of list of int, optional
        Where each bit of each index goes, the dims in this order; None for rows.
    strides : tuple of int
        Elements from row to row, and so on outwards, likewise; for padded rows.
    """

    order: tuple[int, ...]
    images: list[list[int]] | None
    strides: tuple[int, ...] = ()

    @property
    def swizzle(self) -> str | None:
        """The annotation that lays the buffer out so; None for padded rows.

        >>> SharedTile((0, 1), [[], [1, 2]]).swizzle, SharedTile((0, 1), [[], []]).swizzle
        (';1,2', 'none')
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


def choose_shared_layout(
    tile: Sequence[int],
    order: Sequence[int],
    into: TileWalk,
    out: TileWalk,
    size: int,
    *,
    cut: Mapping[int, int | None] | None = None,
    put: int | None = None,
) -> tuple[SharedTileLayout, int]:
    """Find the shared layout with the fewest bank conflicts, and count those that remain.

    It is a swizzle where that leaves none. Otherwise, and where the tile is no power of two, rows
    are padded by up to 128 bytes, whatever leaves fewest.

    Parameters
    ----------
    tile : sequence of int
        In the order of the store.
    order : sequence of int
        Dims of the load, the innermost last.
    into, out : Walk
        How the tile is filled and read.
    size : int
        Bytes of an element.
    cut : mapping of int to int or None, optional
        Dims along which some tiles are not full, and the elements that these have; None where that
        is not known. :mod:`.swizzles` says when it matters.
    put : int, optional
        Elements that a thread puts down at once, if not all that it brings at once.
    """
    known = tuple(sorted((cut or {}).items()))
    return _place_tile(tuple(tile), tuple(order), into, out, size, known, put)


# A block is planned on trial, and again once the plan has won.
@lru_cache(maxsize=1 << 10)
def _place_tile(
    tile: tuple[int, ...],
    order: tuple[int, ...],
    into: TileWalk,
    out: TileWalk,
    size: int,
    ends: tuple[tuple[int, int | None], ...],
    put: int | None,
) -> tuple[SharedTileLayout, int]:
    best, least = None, _ANY
    cut = dict(ends)

    def count(place: SharedTileLayout, most: int) -> int:
        found = conflicts((into, out), tile, place, size, most=most, put=put)
        return found or _part_warp_conflicts(tile, place, out, size, cut)

    for images in swizzles(tile, order, into, out, size, cut, put):
        place = SharedTileLayout(order, images)
        found = count(place, least)
        if found < least:
            best, least = place, found
        if least == 0:
            break
    inner = order[-1]
    width = max(into.unit[inner], out.unit[inner], BANK_BYTES // size)
    width = min(width, MAX_ACCESS_BYTES // size)
    first = -tile[inner] % width
    for padding in range(first, first + max(width, LINE_BYTES // size) + 1, width):
        if least == 0:
            break
        place = padded(tile, order, padding)
        found = count(place, least)
        if found < least:
            best, least = place, found
    assert best is not None
    return best, least


def _part_warp_conflicts(
    tile: Sequence[int],
    place: SharedTileLayout,
    out: TileWalk,
    size: int,
    cut: Mapping[int, int | None],
) -> int:
    """Count conflicts of a warp that reads a tile, over the ends that the tile may have.

    Other warps read the same pattern, all its offsets changed by one XOR. In padded rows they do
    not; there it tells of the first.
    """
    inner = place.order[-1]
    width = min(out.unit[inner] * size, MAX_ACCESS_BYTES)
    if width <= BANK_BYTES:
        return 0
    lanes = out.places(len(tile))[:WARP_SIZE]
    ends = product(*(_ends(lanes[:, d], n, cut.get(d, 0)) for d, n in enumerate(out.unit)))
    active = np.array([(lanes <= np.array(end)).all(axis=1) for end in ends])
    active = np.pad(active, ((0, 0), (0, WARP_SIZE - len(lanes))))
    starts = np.pad(place.offsets(lanes) * size, (0, WARP_SIZE - len(lanes)))
    waves, least = request_wavefronts(np.broadcast_to(starts, active.shape), active, width)
    return int((waves - least).sum())


def _ends(places: np.ndarray, unit: int, rest: int | None) -> np.ndarray:
    """Last units along a dim that lanes of a warp may have: all, or what is left of a rest."""
    found = np.unique(places)
    if rest is None:
        return found
    left = rest % (int(found[-1]) + unit)
    return found[[-1, np.count_nonzero(found < left) - 1]] if left else found[-1:]


def end_conflicts(
    out: TileWalk, tile: Sequence[int], place: SharedTileLayout, size: int, extents: Sequence[int]
) -> int:
    """Count the conflicts in which tiles are read, those at the ends of ragged dims included.

    Parameters
    ----------
    out : Walk
    tile : sequence of int
    place : SharedTile
        Without conflicts for whole warps.
    size : int
        Bytes of an element. Of requests of up to 4 a lane a warp is one phase, and part of it meets
        no bank more often.
    extents : sequence of int
        Of the tensor, in the order of the store.
    """
    if min(out.unit[place.order[-1]] * size, MAX_ACCESS_BYTES) <= BANK_BYTES:
        return 0
    found = 0
    for end in product(*({t, n % t or t} for n, t in zip(extents, tile, strict=True))):
        for starts, active, width in _requests([out], tile, place, size, end):
            live = active.any(axis=1)
            waves, least = request_wavefronts(starts[live] * size, active[live], width * size)
            found += int((waves - least).sum())
    return found


def put_conflicts(
    into: TileWalk,
    tile: Sequence[int],
    place: SharedTileLayout,
    size: int,
    extents: Sequence[int],
    lanes: int = WARP_SIZE,
    put: int | None = None,
) -> int:
    """Count the conflicts of a launch in which vectors are put down, those at ragged ends cut.

    Lanes with whole vectors go together, and the others element by element (``GuardVectors``).

    Parameters
    ----------
    into : Walk
        A unit is a vector along the load's innermost dim.
    tile : sequence of int
    place : SharedTile
    size : int
        Bytes of an element.
    extents : sequence of int
        Of the tensor, in the order of the store.
    lanes : int
        Lanes of a request.
    put : int, optional
        Elements that a thread puts down at once, if not all that it brings at once.
    """
    inner, rank, found = place.order[-1], len(tile), 0
    step = np.arange(rank) == inner
    places, vector = into.places(rank), put or into.unit[inner]
    for kinds in product(*(_kinds_of_tile(n, t) for n, t in zip(extents, tile, strict=True))):
        end = np.array([held for _, held in kinds])
        asked = []
        for part in range(0, into.unit[inner], vector):
            at = places + part * step
            whole = (at + (vector - 1) * step < end).all(axis=1)
            asked.append((at, whole, vector * size))
            for one in (at + element * step for element in range(vector)):
                asked.append((one, (one < end).all(axis=1) & ~whole, size))
        for at, active, width in asked:
            live = _by_request(active, lanes)
            starts = _by_request(place.offsets(at), lanes) * size
            busy = live.any(axis=1)
            if not busy.any():
                continue
            waves, least = request_wavefronts(starts[busy], live[busy], width, joins=False)
            found += prod(count for count, _ in kinds) * int((waves - least).sum())
    return found


def _kinds_of_tile(extent: int, tile: int) -> list[tuple[int, int]]:
    """How many tiles along a dim are full, and how much the others have of it."""
    kinds = [(extent // tile, tile), (int(extent % tile > 0), extent % tile)]
    return [(count, held) for count, held in kinds if count]


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
    walks : sequence of Walk
        How threads go over the tile.
    tile : sequence of int
        In the order of the store.
    place : SharedTile
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
    for starts, active, width in _requests(walks, tile, place, size, put=put):
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
    end: Sequence[int] | None = None,
    put: int | None = None,
) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Offsets of the lanes of each request, which of them are in the tile, and their width.

    ``end`` is how much there is of the tile, if not all; ``put`` how wide a request may be.
    """
    inner, rank = place.order[-1], len(tile)
    for walk in walks:
        places = walk.places(rank)
        active = _by_request((places < np.array(end or tile)).all(axis=1))
        width = min(walk.unit[inner], put or walk.unit[inner], MAX_ACCESS_BYTES // size)
        shape = [n // width if dim == inner else n for dim, n in enumerate(walk.unit)]
        step = np.array([width if dim == inner else 1 for dim in range(rank)])
        for element in np.indices(shape).reshape(rank, -1).T:
            offsets = _by_request(place.offsets(places + element * step))
            yield offsets, active, width


def _by_request(values: Any, lanes: int = WARP_SIZE) -> np.ndarray:
    """Deal values out to the lanes of requests; lanes that are not there have zeros."""
    rows = -(-len(values) // lanes)
    full = np.zeros(rows * lanes, values.dtype)
    full[: len(values)] = values
    dealt = np.zeros((rows, WARP_SIZE), values.dtype)
    dealt[:, :lanes] = full.reshape(rows, lanes)
    return dealt
