"""The swizzle of a tile between the walk that fills it and the walk that reads it."""

from __future__ import annotations

from collections.abc import Sequence

from ...gpu.hardware import MAX_ACCESS_BYTES, WARP_SIZE
from ...layout import LinearLayout, optimal_swizzle
from ...layout.linear import log2
from .walks import TileWalk


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
    into, out : TileWalk
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
