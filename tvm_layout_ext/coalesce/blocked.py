"""Spread a nest over threads dimension by dimension, as a blocked layout does.

Fusing all loops lets a warp run on from one row into the next wherever rows end. That is best where
rows lie one after the other in memory. Where they do not (slices, pads, rows with a stride), the
rows are cut at places that have nothing to do with sectors, and each cut costs one more. A blocked
layout starts every row with a fresh lane instead: lanes cover the contiguous dim first and the rest
of them the next dim, then warps likewise.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ..analysis.nest import Loop, Nest
from ..gpu.hardware import WARP_SIZE
from ..ir.evaluate import placeholder_extent
from ..layout import BlockedLayout
from .direct import bind_kernel, fuse, in_order, split_whole
from .mapping import Mapping


def spread(groups: Sequence[Sequence[Loop]], vector: int, threads: int) -> BlockedLayout | None:
    """Choose lanes and warps for each group of loops by the builder of blocked layouts.

    The builder takes the extents of a tile, which are powers of two in Triton. Here they are those
    of the nest, rounded up to powers of two; lanes beyond an extent idle.

    Parameters
    ----------
    groups : sequence of sequence of Loop
        Loops that act as one, as one dim each, the contiguous one last.
    vector : int
        Neighbours along the last dim that a thread takes.
    threads : int
        Threads of a block.

    Returns
    -------
    BlockedLayout or None
        None where there is but one dim, or the number of warps is no power of two.
    """
    warps = threads // WARP_SIZE
    if len(groups) < 2 or threads % WARP_SIZE or warps & (warps - 1) or not warps:
        return None
    extents = [prod(placeholder_extent(loop.extent) for loop in group) for group in groups]
    shape = [1 << max(0, extent - 1).bit_length() for extent in extents]
    size = [*[1] * (len(groups) - 1), vector]
    return BlockedLayout.covering(shape, size, range(len(groups) - 1, -1, -1), warps)


def schedule_blocked(
    sch: Any,
    block: Any,
    nest: Nest,
    mapping: Mapping,
    groups: Sequence[Sequence[Loop]],
    layout: BlockedLayout,
    kernel: dict[str, int] | None,
) -> None:
    """Bind a nest so that its threads lie as a blocked layout has them.

    ::

        for i in range(64):              for block in T.thread_binding(8):
            for j in range(20):              for thread in T.thread_binding(256):   # 8 x 32
                B[i, j] = A[i, j + 4]            B[block * 8 + thread // 32, thread % 32] = ...

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
    block : SBlockRV
    nest : Nest
        The block as it is.
    mapping : Mapping
        The order of the loops and the vector.
    groups : sequence of sequence of Loop
        The loops of the order, those in one list that act as one.
    layout : BlockedLayout
        Lanes and warps of each group.
    kernel : dict of str to int, optional
        Thread axes of the kernel around the block; None binds ``blockIdx.x`` and ``threadIdx.x``.
    """
    refs = in_order(sch, block, nest, mapping.order)
    outer, warps, lanes, vectors = [], [], [], []
    for dim, group in enumerate(groups):
        fused = fuse(sch, [refs.pop(0) for _ in group])
        size = layout.size_per_thread[dim]
        factors = [layout.warps_per_cta[dim], layout.threads_per_warp[dim], *[size] * (size > 1)]
        rest, warp, lane, *vector = split_whole(sch, fused, factors, nest.assumptions)
        outer.append(rest)
        warps.append(warp)
        lanes.append(lane)
        vectors += vector
    sch.reorder(*outer, *warps, *lanes, *vectors)
    thread = sch.fuse(*warps, *lanes)
    grid = fuse(sch, outer)
    if kernel is None:
        sch.bind(grid, "blockIdx.x")
        sch.bind(thread, "threadIdx.x")
    else:
        bind_kernel(sch, thread, kernel)
        sch.unroll(grid)
    for vector in vectors:
        sch.vectorize(vector)
