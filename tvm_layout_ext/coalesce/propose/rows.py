"""Lanes and warps dimension by dimension, as a blocked layout has them.

Fusing all loops lets a warp run on from one row into the next wherever rows end. That is best where
rows lie one after the other in memory. Where they do not (slices, pads, rows with a stride), the
rows are cut at places that have nothing to do with sectors, and each cut costs one more. Here every
row starts with a fresh lane: lanes cover the contiguous dim first and the rest of them the next
dim, then warps likewise.
"""

from __future__ import annotations

from functools import partial
from math import prod

from ...gpu.hardware import WARP_SIZE
from ...ir.evaluate import placeholder_extent
from ...layout import BlockedLayout
from ..block_size import threads_for
from ..strategy import Strategy
from ..subject import Subject
from ..thread_map import ThreadMap
from .flat import map_direct


def rows(subject: Subject) -> list[Strategy]:
    """Propose a layout that covers the loops' extents, if they are of several dims."""
    if subject.is_reduction:
        return []
    groups, vector = subject.groups, subject.mapping.vector
    threads = subject.threads or threads_for(subject.mapping, None)
    warps = threads // WARP_SIZE
    if len(groups) < 2 or threads % WARP_SIZE or warps & (warps - 1) or not warps:
        return []
    extents = [prod(placeholder_extent(loop.extent) for loop in group.loops) for group in groups]
    # Extents in Triton are powers of two; lanes beyond an extent idle.
    shape = [1 << max(0, extent - 1).bit_length() for extent in extents]
    order = range(len(groups) - 1, -1, -1)
    layout = BlockedLayout.covering(shape, [*[1] * (len(groups) - 1), vector], order, warps)
    rest = "block" if subject.kernel is None else "register"
    spread = ThreadMap.of(
        [group.name for group in groups],
        ("vector", [(len(groups) - 1, vector)]),
        ("lane", [(dim, layout.threads_per_warp[dim]) for dim in order]),
        ("warp", [(dim, layout.warps_per_cta[dim]) for dim in order]),
        (rest, [(dim, None) for dim in order]),
    )
    path = "direct" if subject.kernel is None else "copy"
    return [Strategy(path, partial(map_direct, subject, list(groups), spread))]
