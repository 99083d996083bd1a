"""The swizzle of a tile between the map that fills it and the map that reads it.

It is that of :func:`~tvm_layout_ext.layout.optimal_swizzle`, asked for the order of whole vectors,
whose elements stay together: asked for single elements it keeps conflicts away just as well, but
splits the 16 bytes that a thread brings.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    order = list(dims)
    bases: dict[str, list[tuple[int, ...]]] = {"register": [], "lane": [], "warp": [], "block": []}
    held: list[tuple[int, ...]] = []
    for part, stride in zip(threads.parts, threads.strides(), strict=True):
        if part.count is None or part.iterator not in order:
            continue
        at = order.index(part.iterator)
        for bit in range(log2(part.count)):
            index = (stride << bit) >> (kept if at == len(order) - 1 else 0)
            if index:
                vector = tuple(index if dim == at else 0 for dim in range(len(order)))
                is_unit = part.level == "vector" or (part.level == "register" and not bases["lane"])
                level = held if is_unit else bases["lane" if part.level == "lane" else "warp"]
                level.append(vector)
    bases["warp"] += held
    sizes = {f"dim{at}": n >> (kept if at == len(order) - 1 else 0) for at, n in enumerate(tile)}
    return LinearLayout.from_bases(bases, sizes)
