"""Cut a reduction over blocks of threads, whose results a second kernel combines.

A column sum of 1000000x33 has results for two warps. Cut into slabs of rows it is work for the
whole GPU, and a second kernel adds up the sums of the slabs. The order of the additions is fixed,
so the result is the same in every run, which atomic additions would not give.
"""

from __future__ import annotations

from math import ceil
from typing import Any

from ...analysis.nest import Nest
from ...gpu.hardware import MULTIPROCESSORS
from ..canonical import one_loop_each
from ..emit import fuse
from .columns import ColumnsTile
from .plan import ReductionPlan, refs_of

#: Threads of a multiprocessor that should have a part of a row.
_ROW_THREADS = 2048
#: The same of columns: each has 8 loads of 16 bytes on their way.
_THREADS = 512


def choose_slabs(extent: int, blocks: int, tile: ColumnsTile) -> int:
    """Say into how many slabs to cut a reduction so that every multiprocessor is busy; 1 is whole.

    Of numbers that divide it the one with which all have most nearly the same work.

    ``extent`` counts the iterations of the reduction, or vectors along it, and ``blocks`` those
    that there are without slabs; ``tile`` is what each does at once.
    """
    held = _ROW_THREADS // tile.threads if tile.is_row else max(2, _THREADS // tile.threads)
    fitting = extent // (tile.deals * tile.together)
    most = min(MULTIPROCESSORS * held // max(1, blocks), fitting)
    if most < 2:
        return 1
    longest = most if tile.is_row else min(2 * most, fitting)

    def price(number: int) -> tuple[float, int]:
        each = number * blocks / MULTIPROCESSORS
        return round(ceil(each) / each, 1), abs(number - most)

    for together in range(tile.together, 0, -1):
        numbers = range(most // 2 + 1, longest + 1)
        exact = [n for n in numbers if extent % (n * together * tile.deals) == 0]
        if exact:
            return max(exact) if tile.is_row else min(exact, key=price)
    # The last slab is shorter, and none is empty.
    return -(-extent // -(-extent // most))


def split_reduction(sch: Any, block: Any, nest: Nest, plan: ReductionPlan, slabs: int) -> Any:
    """Cut a reduction into slabs along its loops; return the block that sums within one.

    ::

        for j, k in T.grid(N, M):            for s, j, k in T.grid(S, N, M // S):
            B[j] += A[k, j]                      B_rf[s, j] += A[s * (M // S) + k, j]
                                             for j, s in T.grid(N, S):
                                                 B[j] += B_rf[s, j]

    Of a load along the reduction the vectors stay whole, as a loop of their own.
    """
    outer, inner = (refs_of(sch, block, nest, loops) for loops in (plan.data, plan.reduced))
    sch.reorder(*outer, *inner)
    if plan.along and plan.vector > 1:
        inner[-1], _ = sch.split(inner[-1], [None, plan.vector])
    slab, _ = sch.split(fuse(sch, inner), [slabs, None])
    partial = sch.rfactor(slab, len(plan.data) if plan.along else 0)
    one_loop_each(sch, partial)
    return partial
