"""A product by warpgroups: TMA copies as many stages ahead as are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...gpu.warpgroups import WARPGROUP_ROWS
from ..primitives.cluster import cluster as clustered
from ..primitives.persistent import persistent
from ..primitives.pipeline import pipeline
from ..primitives.rasterize import rasterize
from ..primitives.specialize_warps import specialize_warps
from ..primitives.use_tensor_core import TensorCore
from .cooperative_copy import CopyLoops


@dataclass(frozen=True)
class Gemm:
    """What ``sch.gemm`` made, to go on with.

    Attributes
    ----------
    m, n : LoopRV
        Tiles of a result, bound to ``blockIdx.y`` and ``blockIdx.x``.
    warp_m, warp_n : LoopRV
        Warps of a tile, bound to ``threadIdx.y`` and ``threadIdx.z``; with ``wgmma`` ``warp_m`` has
        the warpgroups, and ``warp_n`` is None.
    k : LoopRV
        Steps along K, which are pipelined.
    tensor_core : TensorCore
        The blocks.
    k_inner, m_inner, n_inner : LoopRV or None
        Instructions of a warp in a step, unrolled; with ``wgmma`` only ``m_inner``.
    copies : tuple of CopyLoops
        Of the operands A and B to shared memory; none with ``wgmma``.
    """

    m: Any
    n: Any
    warp_m: Any
    warp_n: Any
    k: Any
    tensor_core: TensorCore
    k_inner: Any = None
    m_inner: Any = None
    n_inner: Any = None
    copies: tuple[CopyLoops, ...] = ()


def by_warpgroups(
    sch: Any,
    tc: TensorCore,
    tile: tuple[int, int],
    stages: int,
    group: int,
    cluster: int = 1,
    slices: int = 1,
    stay: bool = True,
) -> Gemm:
    """Let one or two warpgroups multiply a tile, and another copy for them.

    Neighbours of a cluster share the longer side of their tiles, or the steps of one tile. Blocks
    that ``stay`` take tile after tile.
    """
    rows, columns = tile
    warpgroups = min(2, rows // WARPGROUP_ROWS)
    m, warpgroup, piece = sch.split(tc.m, [None, warpgroups, rows // WARPGROUP_ROWS // warpgroups])
    sch.reorder(*tc.batch, m, tc.n, warpgroup, tc.k, piece)
    if tc.batch:
        sch.bind(sch.fuse(*tc.batch), "blockIdx.z")
    rasterize(sch, m, tc.n, group)
    if stay:
        persistent(sch, m)
    clustered(sch, m if columns >= rows else tc.n, cluster, multicast=True)
    clustered(sch, tc.k, slices)
    for operand in (tc.a, tc.b):
        sch.compute_at(operand, tc.k)
    pipeline(sch, tc.k, stages, async_copy="tma")
    specialize_warps(sch, warpgroup)
    sch.reverse_compute_at(tc.result, tc.n)
    return Gemm(m, tc.n, warpgroup, None, tc.k, tc, m_inner=piece)
