"""Lanes and warps dimension by dimension, as a blocked layout has them.

Fusing all loops lets a warp run on from one row into the next wherever rows end. That is best where
rows lie one after the other in memory. Where they do not (slices, pads, rows with a stride), the
rows are cut at places that have nothing to do with sectors, and each cut costs one more. Here every
row starts with a fresh lane: lanes cover the contiguous dim first and the rest of them the next
dim, then warps likewise. A thread may take several narrow vectors of its row, so that what a block
is of all rows is worked out once for them; of 16 bytes one is best (an H200 adds a bias to
16384x16384 halves in 251 us so, and in 261 with 8 vectors a thread).
"""

from __future__ import annotations

from math import prod

from ...gpu.hardware import MAX_ACCESS_BYTES, WARP_SIZE
from ...ir.evaluate import placeholder_extent
from ...layout import BlockedLayout
from ..block_size import threads_for, widest_access
from ..strategy import Strategy
from ..subject import Subject
from ..thread_map import ThreadMap
from .flat import Direct

#: Most vectors of a thread.
_STEPS = 8


def rows(subject: Subject) -> list[Strategy]:
    """Propose a layout that covers the loops' extents, if they are of several dims."""
    if subject.is_reduction:
        return []
    groups, vector = subject.groups, subject.mapping.vector
    threads = subject.threads or threads_for(subject.nest, subject.mapping, None)
    warps = threads // WARP_SIZE
    if len(groups) < 2 or threads % WARP_SIZE or warps & (warps - 1) or not warps:
        return []
    extents = [prod(placeholder_extent(loop.extent) for loop in group.loops) for group in groups]
    # Extents in Triton are powers of two; lanes beyond an extent idle.
    shape = [1 << max(0, extent - 1).bit_length() for extent in extents]
    order = range(len(groups) - 1, -1, -1)
    layout = BlockedLayout.covering(shape, [*[1] * (len(groups) - 1), vector], order, warps)
    last = len(groups) - 1
    names = [group.name for group in groups]
    own = [
        ("vector", [(last, vector)]),
        ("lane", [(dim, layout.threads_per_warp[dim]) for dim in order]),
        ("warp", [(dim, layout.warps_per_cta[dim]) for dim in order]),
    ]
    whole = [(dim, None) for dim in order]
    if subject.kernel is not None:
        spread = ThreadMap.of(names, *own, ("register", whole))
        return [Strategy("copy", Direct(subject, tuple(groups), spread))]
    tile = vector * layout.threads_per_warp[last] * layout.warps_per_cta[last]
    is_narrow = widest_access(subject.nest, vector) < MAX_ACCESS_BYTES
    most = _steps(extents[last], tile) if is_narrow else 1
    maps = [
        ThreadMap.of(names, *own, ("register", [(last, steps)]), ("block", whole))
        for steps in {1: None, most: None}
    ]
    return [Strategy("direct", Direct(subject, tuple(groups), one)) for one in maps]


def _steps(extent: int, tile: int) -> int:
    """Vectors of a thread that share a row out with the least rest; of equals the most."""
    return min(range(1, _STEPS + 1), key=lambda n: (-(-extent // (tile * n)) * n, -n))
