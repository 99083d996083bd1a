"""A product by ``mma.sync``: its warps, the copies of its operands, and how results leave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...gpu.hardware import BANK_BYTES, NUM_BANKS
from ...gpu.tile_copies import copy_of, dealt
from ...intrin import INSTRUCTIONS
from ...ir.annotations import MIN_BLOCKS
from ..primitives.cluster import cluster as set_cluster
from ..primitives.distribute_epilogue import distribute_epilogue
from ..primitives.pipeline import pipeline
from ..primitives.prefetch import prefetch as set_prefetch
from ..primitives.rasterize import rasterize
from ..primitives.use_tensor_core import TensorCore
from .by_warpgroups import Gemm
from .cooperative_copy import bits_of, cooperative_copy, row_of, spread


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
    _store(sch, tc.result, n, wn, warps)
    return Gemm(m, n, wm, wn, k, tc, ki, mi, ni, copies)


def _store(sch: Any, result: Any, block_loop: Any, warp_loop: Any, warps: Sequence[int]) -> None:
    """Bring results from registers through shared memory to global rows."""
    target = sch.get(result).writes[0].source
    bits = bits_of(target)
    out = _staged(sch, result)
    sch.reverse_compute_at(result, warp_loop, preserve_unit_loops=True)
    sch.reverse_compute_at(out, block_loop, preserve_unit_loops=True)
    i, j = sch.get_loops(out)[-2:]
    # Lanes hold two neighbours of a row; an odd multiple of 16 bytes (32 bytes where two take 8)
    # between rows keeps a warp's rows in different banks. Ragged rows are rounded up to all banks.
    line = NUM_BANKS * BANK_BYTES * 8 // bits
    row = -(-int(sch.get(j).extent) // line) * line
    pad = (16 if bits <= 16 else 32) * 8 // bits
    sch.storage_align(result, 0, -2, factor=row + pad, offset=0)
    vector = copy_of(bits, True, row_of(sch.get(out), target, "writes"), "none").vector
    across, rows, step = dealt(
        int(sch.get(j).extent) // vector, vector * bits // 8, pad * bits // 8
    )
    far, near, apart = sch.split(i, [None, rows, step])
    right, lanes = sch.split(j, [across, vector])
    sch.reorder(far, apart, near, right, lanes)
    spread(sch, sch.fuse(far, apart, near, right), warps)
    if vector > 1:
        sch.vectorize(lanes)
    for loop in distribute_epilogue(sch, result):
        sch.unroll(loop)


def _staged(sch: Any, result: Any) -> Any:
    """Stage the result in shared memory by its own iterators; the copy to where it belongs."""
    node = sch.get(result)
    indices, own = node.body.indices, [one.var for one in node.iter_vars]
    same = (index.same_as(var) for index, var in zip(indices, own, strict=False))
    if len(indices) == len(own) and all(same):
        return sch.cache_write(result, 0, "shared.dyn")
    out = sch.reindex(result, ("write", 0))
    sch.set_scope(result, 0, "shared.dyn")
    return out
