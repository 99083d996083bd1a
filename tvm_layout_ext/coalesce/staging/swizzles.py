"""The swizzle of a tile between the map that fills it and the map that reads it.

It is that of :func:`~tvm_layout_ext.layout.optimal_swizzle`, asked for the order of whole vectors,
whose elements stay together: asked for single elements it keeps conflicts away just as well, but
splits the 16 bytes that a thread brings.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...gpu.hardware import MAX_ACCESS_BYTES
from ...layout import LinearLayout, optimal_swizzle
from ...layout.linear import log2
from ...layout.placement import Xor
from ...layout.swizzle import swizzle_conflicts
from ..thread_map import ThreadMap


def swizzled(
    into: ThreadMap, out: ThreadMap, dims: Sequence[int], size: int, put: int
) -> tuple[Xor, int]:
    """Find the shared layout between two maps of a tile.

    ``dims`` are what iterators of ``out`` those of ``into`` are, in the order of the load; ``size``
    are bytes of an element, of which a thread puts down ``put`` at once. Tells where each
    element goes, and the lanes too many that meet in a bank.

    Examples
    --------
    >>> counts = [(1, 2), (0, 64)], [(1, 16), (0, 8)]
    >>> into = ThreadMap.dealt("ji", [("vector", [(1, 4)])], counts[0], 32)
    >>> out = ThreadMap.dealt("ij", [("vector", [(1, 4)])], counts[1], 32)
    >>> swizzled(into, out, [1, 0], 4, 4)[0].images
    ((68, 136, 4, 8, 272, 32), (1, 2, 16))
    """
    vector = min(max(put, out.unit[dims[-1]]), MAX_ACCESS_BYTES // size)
    src = _vectors(into, range(len(dims)), into.tile, log2(vector))
    dst = _vectors(out, dims, into.tile, log2(vector))
    found = optimal_swizzle(src, dst, 8 * size * vector)
    place = found.flatten_ins("offset").invert()
    images = []
    for at, extent in enumerate(into.tile):
        low = log2(vector) if at == len(dims) - 1 else 0
        bits = [place.apply(**_index(place, at, 1 << bit)) for bit in range(log2(extent) - low)]
        kept = [1 << bit for bit in range(low)]
        images.append((*kept, *(at["offset"] * vector for at in bits)))
    return Xor(tuple(images)), sum(swizzle_conflicts(found, src, dst, 8 * size * vector))


def _index(place: LinearLayout, dim: int, index: int) -> dict[str, int]:
    return {name: index if name == f"dim{dim}" else 0 for name in place.in_dims}


def _vectors(
    threads: ThreadMap, dims: Sequence[int], tile: Sequence[int], kept: int
) -> LinearLayout:
    """Which vectors of the tile the lanes of a warp take, and which come after.

    Registers count with the warps: the swizzle would keep those of both sides together.
    """
    linear, unit = threads.to_linear(), log2(prod(threads.unit))
    registers = linear.basis("register")
    # What a thread takes at once comes last.
    after = (*linear.basis("warp"), *registers[unit:], *registers[:unit])

    def vector(place: Sequence[int]) -> tuple[int, ...]:
        *outer, last = (place[dim] for dim in dims)
        return (*outer, last >> kept)

    lanes, warps = (
        [v for v in map(vector, own) if any(v)] for own in (linear.basis("lane"), after)
    )
    sizes = {f"dim{at}": n >> (kept if at == len(dims) - 1 else 0) for at, n in enumerate(tile)}
    return LinearLayout.from_bases(
        {"register": [], "lane": lanes, "warp": warps, "block": []}, sizes
    )
