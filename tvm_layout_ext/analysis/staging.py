"""The shared-memory tile between a load and a store that want different orders.

A block of threads reads a box of elements in the order of the load and writes it in the order of
the store. Sizes are powers of two. A warp reads along rows of the load, so its requests fill whole
lines. On the way out a warp covers a patch: lanes go along the store until they fill 128 bytes,
then along the load. Elements narrower than a bank go in groups along the load, a word at a time,
and the thread that has such groups for several places of the store turns them round in registers.

In shared memory the tile lies in the order of the load, with some offset bits XORed into lower ones
so that the patch meets every bank once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from ..hardware import NUM_BANKS, WARP_SIZE
from ..layout.banks import wavefronts
from .axis_info import power_of_two_in

__all__ = ["Patch", "Swizzle", "choose_patch", "choose_swizzle", "choose_tile", "images"]

LINE_BYTES = 128
#: Bytes of a row of the tile: two lines, so that DRAM pages are left less often.
_ROW_BYTES = {1: 128, 2: 256, 4: 256, 8: 512}
#: XORs of one swizzle; two have always been enough.
_MOST_STEPS = 3


def _ceil_power(value: int) -> int:
    return 1 << max(0, (value - 1).bit_length())


def choose_tile(
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
    >>> choose_tile([16384, 16384], [[0, 1], [1, 0]], [4, 4])
    [64, 64]
    >>> choose_tile([64, 3136, 256], [[0, 1, 2], [0, 2, 1]], [2, 2])
    [1, 64, 128]
    """
    tile = [1] * len(extents)
    for position, (order, size) in enumerate(zip(orders, element_bytes, strict=True)):
        wanted = _ROW_BYTES[size] // size
        if position and size in (2, 8):
            wanted //= 2
        for dim in reversed(order):
            extent = extents[dim]
            part = wanted if extent is None else min(wanted, _ceil_power(extent))
            tile[dim] = max(tile[dim], part)
            wanted = -(-wanted // part)
            if wanted == 1:
                break
    return tile


@dataclass(frozen=True)
class Patch:
    """What the threads cover when the tile is written out.

    Attributes
    ----------
    vector : int
        Neighbours along the store that a thread writes at once.
    group : int
        Neighbours along the load that a thread takes at once, to fill a bank.
    group_dim : int
        The load's innermost dim.
    pieces : tuple of (int, int)
        Dim and count of each step in which lanes, then warps, then rounds go on over the tile, in
        units of vectors and groups.
    """

    vector: int
    group: int
    group_dim: int
    pieces: tuple[tuple[int, int], ...]

    def unit(self, dim: int, last: int) -> int:
        """Elements of a dim that a thread does at once."""
        if dim == last:
            return self.vector
        return self.group if dim == self.group_dim else 1

    def read_width(self, order: Sequence[int], last: int) -> int:
        """Elements that a thread takes at once from a buffer that lies in this order of dims."""
        if order[-1] == last:
            return self.vector
        return self.group if order[-1] == self.group_dim else 1

    def factors(self, dim: int, last: int) -> list[int]:
        """Sizes into which the tile falls along a dim, the innermost last."""
        counts = [count for other, count in self.pieces if other == dim]
        return [*reversed(counts), self.unit(dim, last)]


def choose_patch(
    tile: Sequence[int],
    extents: Sequence[int | None],
    load_order: Sequence[int],
    *,
    vector: int,
    group: int,
    size: int,
) -> Patch:
    """Choose how threads cover the tile when it is written out.

    Parameters
    ----------
    tile : sequence of int
        In the order of the store.
    extents : sequence of int or None
        Of the whole dims.
    load_order : sequence of int
        Dims of the staged load, the innermost last.
    vector : int
        Elements that the store can take at once.
    group : int
        Elements of the load that fill a bank.
    size : int
        Bytes of an element of the store.

    Examples
    --------
    A warp's patch is 8 vectors, 128 bytes, along the store by 4 along the load:

    >>> choose_patch([64, 64], [999, 999], [1, 0], vector=4, group=1, size=4).pieces
    ((1, 8), (0, 4), (1, 2), (0, 16))
    >>> choose_patch([64, 128], [999, 999], [1, 0], vector=8, group=2, size=2).pieces
    ((1, 8), (0, 4), (1, 2), (0, 8))
    """
    last, group_dim = len(tile) - 1, load_order[-1]
    vector = min(vector, tile[last])
    group = min(group, tile[group_dim]) if group_dim != last else 1
    units = [1] * len(tile)
    units[group_dim] = group
    units[last] = vector
    left = [extent // unit for extent, unit in zip(tile, units, strict=True)]
    store_order = list(reversed(range(len(tile))))
    pieces: list[tuple[int, int]] = []

    def take(dims: Sequence[int], most: int, *, contiguous: bool = False) -> int:
        for dim in dims:
            count = min(left[dim], most)
            if count > 1:
                pieces.append((dim, count))
                left[dim] //= count
                most //= count
            if contiguous and extents[dim] != tile[dim]:
                break
        return most

    line = min(WARP_SIZE, max(1, LINE_BYTES // (vector * size)))
    lanes = WARP_SIZE // line * take(store_order, line, contiguous=True)
    take(store_order, take(list(reversed(load_order)), lanes))
    take(store_order, int(np.prod(tile)))
    return Patch(vector, group, group_dim, tuple(pieces))


@dataclass(frozen=True)
class Swizzle:
    """Offset bits XORed into lower ones, step by step.

    Attributes
    ----------
    steps : tuple of (int, int, int)
        How many bits, from where, and from which higher place they come.

    Examples
    --------
    >>> [Swizzle(((3, 3, 6),)).apply(64 * row) for row in range(4)]
    [0, 72, 144, 216]
    """

    steps: tuple[tuple[int, int, int], ...] = ()

    def apply(self, offset: int) -> int:
        """Swizzled offset of an element."""
        for bits, target, source in self.steps:
            offset ^= ((offset >> source) & ((1 << bits) - 1)) << target
        return offset

    def then(self, bits: int, target: int, source: int) -> Swizzle:
        """One step more."""
        return Swizzle((*self.steps, (bits, target, source)))


def choose_swizzle(
    tile: Sequence[int],
    order: Sequence[int],
    patch: Patch,
    *,
    load_vector: int,
    size: int,
) -> tuple[Swizzle, int]:
    """Find the swizzle with the fewest bank conflicts on both sides of a tile.

    Parameters
    ----------
    tile : sequence of int
        In the order of the store.
    order : sequence of int
        Dims of the load, the innermost last; the buffer lies in this order.
    patch : Patch
        How the threads cover the tile on its way out.
    load_vector : int
        Neighbours that a thread puts into shared memory at once.
    size : int
        Bytes of an element.

    Returns
    -------
    tuple of Swizzle and int
        The swizzle, and the conflicts that remain in one request of either side. XOR being linear,
        all requests have as many.
    """
    total = int(np.prod([tile[dim] for dim in order]))
    writes = [lane * load_vector for lane in range(WARP_SIZE) if lane * load_vector < total]
    width = patch.read_width(order, len(tile) - 1)
    sides = ((writes, load_vector * size), (_patch_offsets(tile, order, patch), width * size))
    low = max(load_vector, width).bit_length() - 1
    high = total.bit_length() - 1
    moves = [
        (bits, target, source)
        for bits, target in product(range(1, 6), range(low, high))
        for source in range(target + bits, high - bits + 1)
    ]
    best = Swizzle()
    least = _conflicts(sides, best, size)
    for _ in range(_MOST_STEPS):
        if least == 0:
            break
        tried = [best.then(*move) for move in moves]
        counts = [_conflicts(sides, swizzle, size) for swizzle in tried]
        if min(counts, default=least) < least:
            least = min(counts)
            best = tried[counts.index(least)]
    return best, least


def _patch_offsets(tile: Sequence[int], order: Sequence[int], patch: Patch) -> list[int]:
    """Offsets of the lanes of a patch, lane 0 first."""
    strides = {dim: int(np.prod([tile[d] for d in order[i + 1 :]])) for i, dim in enumerate(order)}
    reached = [patch.unit(dim, len(tile) - 1) for dim in range(len(tile))]
    offsets = [0]
    for dim, count in patch.pieces:
        step = reached[dim] * strides.get(dim, 0)
        offsets = [base + i * step for i in range(count) for base in offsets]
        reached[dim] *= count
        if len(offsets) >= WARP_SIZE:
            break
    return offsets[:WARP_SIZE]


def _conflicts(sides: Sequence[tuple[Sequence[int], int]], swizzle: Swizzle, size: int) -> int:
    """Wavefronts over the least possible of one request of each side."""
    found = 0
    for offsets, width in sides:
        addresses = np.array([swizzle.apply(offset) * size for offset in offsets])
        words = len(np.unique((addresses[:, None] + np.arange(0, width, min(width, 4))) // 4))
        found += wavefronts(addresses, width) - max(1, -(-words // NUM_BANKS))
    return found


def images(tile: Sequence[int], swizzle: Swizzle) -> list[list[int]]:
    """Where each bit of each index of the tile goes: the offset is the XOR of these.

    >>> images([4, 8], Swizzle(((2, 1, 3),)))
    [[10, 20], [1, 2, 4]]
    """
    result: list[list[int]] = []
    position = int(np.prod(tile)).bit_length() - 1
    for extent in tile:
        bits = extent.bit_length() - 1
        position -= bits
        result.append([swizzle.apply(1 << (position + b)) for b in range(bits)])
    assert all(power_of_two_in(extent) == extent for extent in tile)
    return result
