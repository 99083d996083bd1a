"""Cut a reduction over blocks of threads, whose results a second kernel combines.

A column sum of 1000000x33 has results for two warps. Cut into slabs of rows it is work for the
whole GPU, and a second kernel adds up the sums of the slabs. The order of the additions is fixed,
so the result is the same in every run, which atomic additions would not give.
"""

from __future__ import annotations

from typing import Any

from ...analysis.nest import Nest
from ...gpu.hardware import MULTIPROCESSORS
from ..canonical import one_loop_each
from ..emit import fuse
from .plan import ReductionPlan, refs_of, total

#: Threads of a multiprocessor, so many of which should have work.
_THREADS = 2048


def choose_slabs(plan: ReductionPlan, blocks: int, threads: int, step: int) -> int:
    """Say into how many slabs to cut a reduction so that every multiprocessor is full; 1 is whole.

    Parameters
    ----------
    plan : ReductionPlan
    blocks, threads : int
        Blocks that there are without slabs, and threads of each.
    step : int
        Iterations of the reduction that a block does at once.
    """
    if any(loop.size is None for loop in (*plan.data, *plan.reduced)):
        return 1
    extent = total(plan.reduced)
    wanted = MULTIPROCESSORS * (_THREADS // threads) // max(1, blocks)
    most = min(wanted, extent // step)
    if most < 2:
        return 1
    units = (step, plan.vector if plan.along else 1)
    for unit in units:
        for number in range(most, most // 2, -1):
            if extent % (number * unit) == 0:
                return number
    # The last slab is shorter, and none is empty.
    chunk = -(-extent // (most * units[1])) * units[1]
    return -(-extent // chunk)


def split_reduction(sch: Any, block: Any, nest: Nest, plan: ReductionPlan, slabs: int) -> Any:
    """Cut a reduction into slabs along its loops; return the block that sums within one.

    ::

        for j, k in T.grid(N, M):            for s, j, k in T.grid(S, N, M // S):
            B[j] += A[k, j]                      B_rf[s, j] += A[s * (M // S) + k, j]
                                             for j, s in T.grid(N, S):
                                                 B[j] += B_rf[s, j]
    """
    outer, inner = (refs_of(sch, block, nest, loops) for loops in (plan.data, plan.reduced))
    sch.reorder(*outer, *inner)
    unit = plan.vector if plan.along else 1
    most = -(-total(plan.reduced) // slabs)
    chunk = -(-most // unit) * unit
    slab, _ = sch.split(fuse(sch, inner), [slabs, chunk])
    partial = sch.rfactor(slab, len(plan.data) if plan.along else 0)
    one_loop_each(sch, partial)
    return partial
