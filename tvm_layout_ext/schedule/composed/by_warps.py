"""A product by ``mma.sync``: its warps, the copies of its operands, and how results leave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...intrin import INSTRUCTIONS
from ...ir.annotations import MIN_BLOCKS
from ..primitives.cluster import cluster as set_cluster
from ..primitives.pipeline import pipeline
from ..primitives.prefetch import prefetch as set_prefetch
from ..primitives.rasterize import rasterize
from ..primitives.use_tensor_core import TensorCore
from ..shared_tiles import staged, store
from .by_warpgroups import Gemm
from .cooperative_copy import cooperative_copy


def by_warps(
    sch: Any,
    tc: TensorCore,
    tile: Sequence[int],
    warps: Sequence[int],
    stages: int,
    group: int,
    swizzle: str,
    prefetch: bool,
    cluster: int,
) -> Gemm:
    """Share a product out to blocks and warps; arguments are as of ``sch.gemm``."""
    m_size, n_size, k_size = INSTRUCTIONS[tc.instruction].shape
    m, wm, mi = sch.split(tc.m, [None, warps[0], tile[0] // warps[0] // m_size])
    n, wn, ni = sch.split(tc.n, [None, warps[1], tile[1] // warps[1] // n_size])
    k, ki = sch.split(tc.k, [None, tile[2] // k_size])
    sch.reorder(*tc.batch, m, n, wm, wn, k, ki, mi, ni)
    if tc.batch:
        sch.bind(sch.fuse(*tc.batch), "blockIdx.z")
    rasterize(sch, m, n, group)
    if cluster > 1:
        set_cluster(sch, n, cluster)
    if stages == 1:
        # Or ptxas stores part of a tile before it loads the rest: a wait for memory more, which
        # made 212 TFLOPS of 270 (H200, 128x128x64, swizzled and padded).
        sch.annotate(n, MIN_BLOCKS, 1)
    sch.bind(wm, "threadIdx.y")
    sch.bind(wn, "threadIdx.z")
    for loop in (ki, mi, ni):
        sch.unroll(loop)
    for fragment in (tc.a_fragment, tc.b_fragment):
        sch.compute_at(fragment, ki, preserve_unit_loops=True)
        for loop in sch.get_loops(fragment)[-2:]:
            sch.unroll(loop)
        if prefetch:
            set_prefetch(sch, fragment)
    copies = tuple(
        cooperative_copy(sch, operand, k, warps=warps, swizzle=swizzle, k_major=k_major)
        for operand, k_major in ((tc.a, tc.a_k_major), (tc.b, tc.b_k_major))
    )
    pipeline(sch, k, stages)
    out = staged(sch, tc.result, wn)
    sch.reverse_compute_at(out, n, preserve_unit_loops=True)
    store(sch, tc.result, out, warps)
    return Gemm(m, n, wm, wn, k, tc, ki, mi, ni, copies)
