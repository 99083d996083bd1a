"""The maps of a reduction that are worth a trial: what goes to lanes, warps, blocks and steps.

A reduction's loops may go to any level. In registers they need nothing; over the lanes of a row a
shuffle tree combines them, over rows side by side shared memory, over blocks a second kernel.
Which levels serve is a matter of time, which :mod:`..cost` models, so a few maps are proposed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ...analysis.nest import Nest, read_nest
from ...gpu.hardware import WARP_SIZE
from ..request import Request
from ..strategy import Strategy
from .columns import ColumnsTile, reduce_across_rows, thread_per_output
from .plan import ReductionPlan, check_guard, divisor, one_reduced, total
from .rows import reduce_along_rows
from .split import choose_slabs, split_reduction

#: Loads of a thread on their way together, and threads of a block: on an H200 the sums of 18
#: programs over rows took 512 as long as 256 or up to 11% less (32768x2048 halves 37.2 us of 38.8).
_TOGETHER, _THREADS = 8, 512
#: Slabs from which on one kernel, with so much less of the GPU, is not worth a trial.
_MANY_SLABS = 16
#: Lanes of a narrow tile; with 4 rows of them a warp stores 8 results, a sector, at once.
_LANES = 2 * WARP_SIZE


@dataclass(frozen=True)
class ReductionWay:
    """One way to share out a reduction.

    Attributes
    ----------
    kind : str
        ``rows``, ``columns`` or ``alone``: a thread for each result.
    wide : bool
        Of columns, whether a block takes whole rows of the operand.
    split : bool
        Whether blocks share results, which a second kernel combines.
    """

    kind: str
    wide: bool = False
    split: bool = False


def propose_reduction(nest: Nest, request: Request) -> list[Strategy]:
    """List the maps to try for a reduction in no kernel."""
    return [_strategy(nest, request, way) for way in _ways(nest, request)]


def _ways(nest: Nest, request: Request) -> Iterator[ReductionWay]:
    plan = ReductionPlan.of(nest, request.vector_bytes)
    ways = []
    if plan.along:
        ways = [ReductionWay("rows")]
    elif may_factor(nest, plan) and total(plan.reduced) > 1:
        ways = [ReductionWay("columns"), ReductionWay("columns", wide=True)]
        if len({_tile(plan, request, wide=way.wide).lanes for way in ways}) == 1:
            ways.pop()
    for way in ways:
        slabs = 1 if nest.is_guarded else _slabs(plan, request, way)
        if slabs < _MANY_SLABS:
            yield way
        if slabs > 1:
            yield replace(way, split=True)
    if plan.data:
        yield ReductionWay("alone")


def _strategy(nest: Nest, request: Request, way: ReductionWay) -> Strategy:
    def apply(sch: Any, block: Any) -> str:
        return schedule_reduction(sch, block, nest, request, way)

    return Strategy("reduction", apply)


def schedule_reduction(
    sch: Any, block: Any, nest: Nest, request: Request, way: ReductionWay
) -> str:
    """Bind a whole reduction nest; return what was done.

    Raises
    ------
    ScheduleError
        If the way does not suit the block.
    """
    check_guard(sch, block, nest)
    plan = ReductionPlan.of(nest, request.vector_bytes)
    if way.kind == "alone":
        # Neighbouring lanes take neighbours of the loops as they stand: a product's main load,
        # which does not know its columns, would have them go down its rows.
        data = [loop for loop in nest.loops if not loop.is_reduction]
        plan = replace(plan, data=data, vector=1 if plan.along else plan.vector)
        return thread_per_output(sch, block, nest, plan, request.num_threads)
    if way.split:
        return _in_slabs(sch, block, nest, plan, request, way)
    nest, plan = one_reduced(sch, block, nest, plan, request.vector_bytes)
    return _one_kernel(sch, block, nest, plan, request, wide=way.wide)


def _in_slabs(
    sch: Any, block: Any, nest: Nest, plan: ReductionPlan, request: Request, way: ReductionWay
) -> str:
    """Share a reduction out over blocks, and combine what they find by a second kernel."""
    nest, plan = one_reduced(sch, block, nest, plan, request.vector_bytes, fuses=False)
    slabs = _slabs(plan, request, way)
    partial = split_reduction(sch, block, nest, plan, slabs)
    now = read_nest(sch, partial)
    own = ReductionPlan.of(now, request.vector_bytes)
    if plan.along:
        own = replace(own, along=True, vector=own.vector if own.vector == plan.vector else 1)
        tile = _of_one_row(total(own.reduced) // plan.vector, request, plan.vector)
    else:
        tile = _tile(own, request, wide=way.wide)
    text = reduce_across_rows(sch, partial, now, own, tile)
    now = read_nest(sch, block)
    _one_kernel(sch, block, now, ReductionPlan.of(now, request.vector_bytes), request)
    return f"{text}, in {slabs} slabs that a second kernel combines"


def _one_kernel(
    sch: Any,
    block: Any,
    nest: Nest,
    plan: ReductionPlan,
    request: Request,
    *,
    wide: bool = False,
) -> str:
    if plan.along:
        return reduce_along_rows(sch, block, nest, plan, request.num_threads)
    return reduce_across_rows(sch, block, nest, plan, _tile(plan, request, wide=wide))


def _slabs(plan: ReductionPlan, request: Request, way: ReductionWay) -> int:
    if any(loop.size is None for loop in (*plan.data, *plan.reduced)):
        return 1
    if plan.along:
        vectors = total(plan.reduced) // plan.vector
        tile = _of_one_row(vectors, request, plan.vector)
        return choose_slabs(vectors, total(plan.data), tile)
    tile = _tile(plan, request, wide=way.wide)
    columns = plan.data[-1].size or 1
    blocks = total(plan.data[:-1]) * -(-columns // (tile.lanes * tile.vector))
    return choose_slabs(total(plan.reduced), blocks, tile)


def _of_one_row(vectors: int, request: Request, depth: int) -> ColumnsTile:
    """A tile of one column: a row whose vectors threads take side by side."""
    deals = 1 << ((request.num_threads or _THREADS).bit_length() - 1)
    return ColumnsTile(1, 1, deals, _together(vectors, deals), depth)


def _together(rows: int, deals: int) -> int:
    """Loads of a thread on their way together, a divisor of all where these go up."""
    most = max(1, min(_TOGETHER, rows // deals))
    return most if rows % deals else divisor(rows // deals, most)


def _tile(plan: ReductionPlan, request: Request, *, wide: bool) -> ColumnsTile:
    """Lanes along the columns, and rows side by side: a power of two, or whole warps of them."""
    columns, rows = plan.data[-1].size or 1, total(plan.reduced)
    vectors = -(-columns // plan.vector)
    threads = request.num_threads or _THREADS
    most = min(vectors, threads // 2 if wide else _LANES)
    # Lanes without a column would have every load under a condition, which loads wait for.
    lanes = next((n for n in range(most, most // 2, -1) if vectors % n == 0), most)
    deals = 2
    while 2 * deals * lanes <= threads and 2 * deals <= rows:
        deals *= 2
    if rows % deals and rows % (deals // 2) == 0 and deals > 2:
        deals //= 2
    return ColumnsTile(lanes, plan.vector, deals, _together(rows, deals))


def may_factor(nest: Nest, plan: ReductionPlan) -> bool:
    """Whether partial sums may become an array, which has a dim for each loop of the results.

    A size that is not known leaves TVM 0.27 without bounds for a tile in shared memory.
    """
    dims = len(nest.block.writes[0].source.shape)
    known = all(loop.size is not None for loop in nest.loops)
    return known and not nest.is_guarded and len(plan.data) == dims
