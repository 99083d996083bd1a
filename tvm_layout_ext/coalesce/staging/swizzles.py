"""Swizzles of a tile: for whole warps, for parts of them, for lanes that read the same.

Requests of 8 or 16 bytes a lane go in phases, and two phases of a read join where every lane reads
what its neighbour does, or the neighbour sleeps (:mod:`.banks`). The
hardware then wants one wavefront of both, which a swizzle that saw to each phase alone does not
give. It happens

* at the end of a ragged dim. Where 8 lanes lie along a row by 4 across, and one of the 8 is left,
  the warp is 4 lanes in two phases; if two are left it is 8, as each lane's next but one sleeps;
* where a load does not depend on the dim of the first lanes, so that they all read the same.

Over F2 each of these is one more span of lanes that the segment of the swizzle must not meet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ...gpu.hardware import BANK_BYTES, LINE_BYTES, MAX_ACCESS_BYTES, WARP_SIZE
from ...layout import LinearLayout, optimal_swizzle
from ...layout.conversion.segments import complement_segment, place_bits
from ...layout.linear import log2
from .walks import TileWalk, ceil_power

__all__ = ["multi_reader_swizzle", "swizzled", "swizzles"]

#: Lanes whose neighbour's number differs in this many low bits may join two phases.
_PARTNERS = 2


def swizzles(
    tile: Sequence[int],
    order: Sequence[int],
    into: TileWalk,
    out: TileWalk,
    size: int,
    cut: Collection[int],
    put: int | None,
) -> Iterator[list[list[int]]]:
    """List the swizzles to try, the simplest first; none for a tile that is no power of two.

    Parameters are those of :func:`multi_reader_swizzle`.
    """
    if any(extent != ceil_power(extent) for extent in tile):
        return
    yield swizzled(tile, order, into, out, size, put)
    images = multi_reader_swizzle(tile, order, into, out, size, cut=cut, put=put)
    if images is not None:
        yield images


def swizzled(
    tile: Sequence[int],
    order: Sequence[int],
    into: TileWalk,
    out: TileWalk,
    size: int,
    put: int | None = None,
) -> list[list[int]]:
    """Find the shared layout between two walks over a tile.

    Parameters
    ----------
    tile : sequence of int
        Powers of two, in the order of the store.
    order : sequence of int
        Dims of the load, the innermost last.
    into, out : Walk
        How the tile is filled and read.
    size : int
        Bytes of an element.
    put : int, optional
        Elements that a thread puts down at once, if not all that it brings at once.

    Returns
    -------
    list of list of int
        Where each bit of each index goes, the dims in the order of the load: the offset of an
        element is the XOR of these.

    Examples
    --------
    >>> from tvm_layout_ext.coalesce.staging.walks import load_walk, store_walk
    >>> into = load_walk([8, 64], [1, 0], 4, 64)
    >>> out = store_walk([8, 64], 0, vector=4, group=1, size=4, threads=64)
    >>> swizzled([8, 64], [1, 0], into, out, 4)
    [[68, 136, 4, 8, 272, 32], [1, 2, 16]]
    """
    inner = order[-1]
    vector = min(max(put or into.unit[inner], out.unit[inner]), MAX_ACCESS_BYTES // size)
    kept = vector.bit_length() - 1
    src, dst = (_vectors(walk, tile, order, kept) for walk in (into, out))
    place = optimal_swizzle(src, dst, 8 * size * vector).flatten_ins("offset").invert()
    images = []
    for dim in order:
        low = kept if dim == inner else 0
        bits = range(tile[dim].bit_length() - 1 - low)
        found = [_offset(place, f"dim{dim}", 1 << bit) << kept for bit in bits]
        images.append([1 << bit for bit in range(low)] + found)
    return images


def _offset(place: LinearLayout, name: str, index: int) -> int:
    at = {own: index if own == name else 0 for own in place.in_dims}
    return place.apply(**at)["offset"]


def _vectors(walk: TileWalk, tile: Sequence[int], order: Sequence[int], kept: int) -> LinearLayout:
    """Which vectors of the tile the lanes of a warp take, and which come after.

    Registers count with the warps: the swizzle would keep those of both sides together.
    """

    def vector_of(dim: int, index: int) -> tuple[int, ...]:
        place = {dim: index >> kept if dim == order[-1] else index}
        return tuple(place.get(own, 0) for own in order)

    reached = list(walk.unit)
    found = []
    for dim, count in walk.pieces:
        found += [vector_of(dim, reached[dim] << bit) for bit in range(count.bit_length() - 1)]
        reached[dim] *= count
    held = [
        vector_of(dim, 1 << bit)
        for dim, size in enumerate(walk.unit)
        for bit in range(size.bit_length() - 1)
    ]
    lanes, rest = found[: log2(WARP_SIZE)], found[log2(WARP_SIZE) :] + held
    sizes = {f"dim{dim}": tile[dim] >> (kept if dim == order[-1] else 0) for dim in order}
    bases = {"register": [], "lane": list(filter(any, lanes)), "warp": list(filter(any, rest))}
    return LinearLayout.from_bases({**bases, "block": []}, sizes)


def multi_reader_swizzle(
    tile: Sequence[int],
    order: Sequence[int],
    into: TileWalk,
    out: TileWalk,
    size: int,
    *,
    cut: Collection[int],
    put: int | None = None,
) -> list[list[int]] | None:
    """Find a swizzle without conflicts, be the tile full or cut; None if there is none.

    Parameters
    ----------
    tile : sequence of int
        Powers of two, in the order of the store.
    order : sequence of int
        Dims of the load, the innermost last.
    into, out : Walk
        How the tile is filled and read.
    size : int
        Bytes of an element.
    cut : collection of int
        Dims along which some tile is not full.
    put : int, optional
        Elements that a thread puts down at once, if not all that it brings at once.

    Returns
    -------
    list of list of int, or None
        As :func:`.swizzled` gives it.

    Examples
    --------
    Lanes go 16 by 2 along the rows of a load of doubles, of which one column may be left:

    >>> from tvm_layout_ext.coalesce.staging.walks import load_walk, store_walk
    >>> into = load_walk([4, 64], [0, 1], 1, 64)
    >>> out = store_walk([4, 64], 0, vector=1, group=1, size=8, threads=64)
    >>> joined_swizzle([4, 64], [0, 1], into, out, 8, cut=[1])
    [[8, 64], [1, 136, 2, 4, 16, 32]]
    """
    starts, dimension = {}, 0
    for dim in reversed(order):
        starts[dim] = dimension
        dimension += log2(tile[dim])
    line = log2(max(1, LINE_BYTES // size))
    inner = order[-1]
    most = MAX_ACCESS_BYTES // size
    written, read = (min(n, most) for n in (put or into.unit[inner], out.unit[inner]))
    kept = log2(max(written, read))
    spans = [_phase(_lanes(into, starts), written * size) + _bits(log2(written))]
    spans += [
        lanes + _bits(log2(read)) for lanes in _read_spans(_lanes(out, starts), read * size, cut)
    ]
    spans = [list(filter(None, span)) for span in spans]
    segment = complement_segment(spans, dimension, max(0, dimension - line), (1 << kept) - 1)
    if segment is None:
        return None
    offsets = place_bits(segment, kept, dimension)
    return [offsets[starts[dim] : starts[dim] + log2(tile[dim])] for dim in order]


def _bits(count: int) -> list[int]:
    return [1 << bit for bit in range(count)]


def _lanes(walk: TileWalk, starts: dict[int, int]) -> list[tuple[int, int]]:
    """Dim and vector of each bit of a lane's number; zero where the load does not depend on it."""
    reached = [log2(n) for n in walk.unit]
    found = []
    for dim, count in walk.pieces:
        for _ in range(log2(count)):
            found.append((dim, 1 << starts[dim] + reached[dim] if dim in starts else 0))
            reached[dim] += 1
    return found[: log2(WARP_SIZE)]


def _phase(lanes: Sequence[tuple[int, int]], width: int) -> list[int]:
    """Vectors of the lanes that are served together."""
    return [vector for _, vector in lanes[: log2(min(WARP_SIZE, LINE_BYTES // width))]]


def _read_spans(
    lanes: Sequence[tuple[int, int]], width: int, cut: Collection[int]
) -> Iterator[list[int]]:
    """List the spans of lanes that read in one wavefront: a phase, or two that join."""
    yield _phase(lanes, width)
    if width <= BANK_BYTES:
        return
    both = list(lanes[: log2(2 * LINE_BYTES // width)])
    for at, (dim, vector) in enumerate(both[:_PARTNERS]):
        if vector == 0:
            yield [own for _, own in both]
        elif dim in cut:
            yield [own for i, (other, own) in enumerate(both) if other != dim or i < at]
