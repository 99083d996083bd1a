"""Cut a reduction into slabs where its result is too small to occupy the GPU.

A column sum of 32768x4096 halves has strips of 64 bytes for 128 blocks, which all end at once and
read 64 bytes here and there. Cut into slabs of rows, the same matrix is a thousand blocks that read
wide strips, and a second kernel adds the sums of the slabs. The order of the additions is fixed, so
the result is the same in every run, which atomic additions would not give.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir import TensorLoad

from ...analysis.nest import Access, Loop
from ...gpu.hardware import MULTIPROCESSORS
from ...ir.evaluate import placeholder_extent
from ...ir.queries import depends_on

#: Multiprocessors of the H200 that all this was measured on that read along rows as fast as its
#: memory: one reads 132 GB/s of 4.3 TB/s.
_ENOUGH_PROCESSORS = 32
#: Blocks of slabs, 2 a multiprocessor, each with 8 loads a thread on their way. On an H200 (driver
#: 580.159.04, cold caches, all in one run) 32768x4096 halves took 65.9 us in 16 slabs of 16 strips,
#: hand-written with a second kernel of 128 threads a block, and 65.5 where that is let begin at the
#: head of the first; in 32 slabs, 6 blocks a multiprocessor, 66.3 and 65.9; in 32 slabs, 4 blocks a
#: multiprocessor, and with 32 threads a block in a second kernel that the end of the first starts,
#: as these passes made it before, 67.2. A kernel that only reads took 64.3.
_BLOCKS = 2 * MULTIPROCESSORS
#: Blocks of strips of 64 bytes, without slabs, that are all there at once.
_STRIP_BLOCKS = 4 * MULTIPROCESSORS
#: Blocks along rows, where slabs of 4 KiB and more cost nothing.
_ROW_BLOCKS = 32 * MULTIPROCESSORS
#: Bytes that a GPU could have read in the 6 us of a second kernel (2.3 us after a first one with
#: this many slabs, 0.6 where OverlapLaunches lets its launch overlap: 67.7, 70.0 and 68.3 us). So
#: 16384x4096 halves stay one kernel (37 us to 40), and 32768x4096 do not (72 us to 68).
_SECOND_KERNEL_BYTES = 26 << 20
#: Share of the bandwidth that one kernel reaches with strips of 64 bytes, all blocks at once.
_STRIPS_SHARE = 0.86
#: Columns of a strip with slabs, one for each thread of a block.
_STRIP = 256
#: Bytes of a strip without slabs, and of the least run worth a warp.
_NARROW_BYTES, _RUN_BYTES = 64, 4096
#: Rows that the threads of a block have on their way together.
_ROWS_IN_FLIGHT = 256


def choose_slabs(
    load: Access, data: Sequence[Loop], reduced: Sequence[Loop], *, along: bool
) -> int:
    """Say into how many slabs at most to cut a reduction's outermost loop; 1 leaves it whole.

    One kernel of few blocks uses a share of the bandwidth, and two kernels all of it after a fixed
    time; the slabs pay where the bytes that idle multiprocessors could read are more than that.

    Parameters
    ----------
    load : Access
        The main load.
    data, reduced : sequence of Loop
        Its loops, outermost first.
    along : bool
        Whether the load runs along the reduction.
    """
    extent = reduced[0].size
    if extent is None or any(loop.size is None for loop in data):
        return 1
    results = prod(loop.size or 1 for loop in data)
    reads = prod(placeholder_extent(loop.extent) for loop in reduced)
    size = results * reads * load.bytes
    if along:
        share = min(1.0, results / _ENOUGH_PROCESSORS)
        wanted = -(-_ROW_BLOCKS // results)
        most = reads * load.bytes // _RUN_BYTES
    else:
        row = results * load.bytes
        share = _STRIPS_SHARE * min(1.0, row / _NARROW_BYTES / MULTIPROCESSORS)
        if row >= _STRIP_BLOCKS * _NARROW_BYTES:
            share = 1.0
        wanted = -(-_BLOCKS * min(results, _STRIP) // results)
        most = reads // _ROWS_IN_FLIGHT
    if size * (1 / share - 1) < _SECOND_KERNEL_BYTES:
        return 1
    return max(1, min(wanted, most, extent))


def pad_reduction(sch: Any, block: Any, place: int, multiple: int) -> bool:
    """Let a sum run on over zeros, up to a multiple of iterations; return whether it does.

    ::

        for j, k in T.grid(N, 1003):         for j, k in T.grid(N, 1024):
            B[j] += A[k, j]                      B[j] += if_then_else(k < 1003, A[k, j], 0)

    Each term must be zero where what it loads is: products, and casts, of loads along the
    reduction.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
    block : SBlockRV
    place : int
        Which of the block's iterators it sums over, its only one; they are its loops.
    multiple : int
    """
    stmt = sch.get(block)
    if not _sums_products(stmt, stmt.iter_vars[place].var):
        return False
    before = [sch.get(one) for one in sch.get_producers(block)]
    padding = [multiple if at == place else 1 for at in range(len(stmt.iter_vars))]
    try:
        sch.pad_einsum(block, padding)
    except RuntimeError:
        return False
    for one in sch.get_producers(block):
        if not any(sch.get(one).same_as(other) for other in before):
            sch.compute_inline(one)
    return True


def _sums_products(stmt: Any, var: Any) -> bool:
    """Whether a block adds products of what it loads by an iterator to a sum from zero."""
    value, init = stmt.body.value, stmt.init
    is_sum = isinstance(value, tirx.Add) and isinstance(init, tirx.BufferStore)
    if not is_sum or not isinstance(init.value, tirx.IntImm | tirx.FloatImm) or init.value.value:
        return False
    factors, own = [value.b], value.a
    if not isinstance(own, TensorLoad) or not own.source.same_as(stmt.writes[0].source):
        return False
    while factors:
        factor = factors.pop()
        if isinstance(factor, tirx.Mul):
            factors += [factor.a, factor.b]
        elif isinstance(factor, tirx.Cast):
            factors.append(factor.value)
        elif not (isinstance(factor, TensorLoad) and depends_on(factor, var)):
            return False
    return True


def split_reduction(sch: Any, loop: Any, slabs: int, axis: int) -> Any:
    """Cut a reduction into slabs along one of its loops.

    ::

        for j, k in T.grid(N, M):            for s, j, k in T.grid(S, N, M // S):
            B[j] += A[k, j]                      B_rf[s, j] += A[s * (M // S) + k, j]
                                             for j, s in T.grid(N, S):
                                                 B[j] += B_rf[s, j]

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
    loop : LoopRV
        The loop to cut, whose extent ``slabs`` divides, of the reduction, which is left to add up
        the slabs.
    slabs : int
    axis : int
        Dim of the slabs in the array of their sums.

    Returns
    -------
    SBlockRV
        The block that sums within a slab.
    """
    slab, _ = sch.split(loop, [slabs, None])
    return sch.rfactor(slab, axis)
