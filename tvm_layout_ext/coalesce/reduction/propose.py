"""The maps of a reduction that are worth a trial: what goes to lanes, warps, blocks and steps.

A reduction's loops may go to any level. In registers they need nothing; over the lanes of a row a
shuffle tree combines them, over rows side by side shared memory, over blocks a second kernel.
Which levels serve is a matter of time, which :mod:`..cost` models, so a few maps are proposed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ...analysis.nest import Nest, read_nest
from ...gpu.hardware import LINE_BYTES, WARP_SIZE
from ..request import Request
from ..strategy import Strategy
from .columns import ColumnsTile, reduce_across_rows, thread_per_output
from .plan import ReductionPlan, check_guard, divisor, one_reduced, total
from .rows import reduce_along_rows
from .split import choose_slabs, split_reduction

#: Loads of a thread on their way together; bytes of them from which on no more are wanted. With 8
#: loads of 2 bytes a thread, sums of 1984x6x16727 halves read 0.72 of what an H200 can, with 8 of
#: one byte maxima of 12432x258x39 read 0.42.
_TOGETHER, _BYTES_TOGETHER = 8, 32
#: Threads of a block of columns, about, and the most where their lanes are an odd number; and bytes
#: of a row that it takes. Cut into blocks of 32 lanes by 8 rows, two a multiprocessor, column sums
#: of 32768x4096 halves take an H200 63.0 us, those of 1000000x33 floats 36.9 us; by 64 lanes and 8
#: rows, four a multiprocessor, 64.4 and 40.0 us (``h200_column_sum_maps.json``).
_THREADS, _MOST_THREADS, _ROW_BYTES = 256, 384, 512
#: Threads of a block that has a part of one row.
_ROW_THREADS = 512
#: Slabs from which on one kernel, with so much less of the GPU, is not worth a trial.
_MANY_SLABS = 16
#: What binds a nest by its plan, and says how.
_Bind = Callable[[Any, Any, Nest, ReductionPlan, Request], str]


def propose_reduction(nest: Nest, request: Request) -> list[Strategy]:
    """List the maps to try for a reduction in no kernel."""
    plan = ReductionPlan.of(nest, request.vector_bytes)
    found: list[_Bind] = []
    if (tile := _of_runs(nest, plan, request)) is not None and _slabs(plan, request, tile) > 1:
        found.append(partial(_in_slabs, tile=tile))
    if plan.along or (may_factor(nest, plan) and total(plan.reduced) > 1):
        slabs = 1 if nest.is_guarded else _slabs(plan, request)
        found += [_in_slabs] * (slabs > 1) + [_whole] * (slabs < _MANY_SLABS)
    if plan.data:
        found.append(_alone)
    return [Strategy("reduction", partial(_apply, bind, nest, request)) for bind in found]


def _apply(bind: _Bind, nest: Nest, request: Request, sch: Any, block: Any) -> str:
    check_guard(sch, block, nest)
    return bind(sch, block, nest, ReductionPlan.of(nest, request.vector_bytes), request)


def _alone(sch: Any, block: Any, nest: Nest, plan: ReductionPlan, request: Request) -> str:
    """Give each result a thread.

    Neighbouring lanes take neighbours of the loops as they stand: a product's main load, which does
    not know its columns, would have them go down its rows.
    """
    data = [loop for loop in nest.loops if not loop.is_reduction]
    is_last = not plan.along and data[-1] is plan.data[-1]
    plan = replace(plan, data=data, vector=plan.vector if is_last else 1)
    return thread_per_output(sch, block, nest, plan, request.num_threads)


def _whole(sch: Any, block: Any, nest: Nest, plan: ReductionPlan, request: Request) -> str:
    nest, plan = one_reduced(sch, block, nest, plan, request.vector_bytes)
    return _one_kernel(sch, block, nest, plan, request)


def _in_slabs(
    sch: Any,
    block: Any,
    nest: Nest,
    plan: ReductionPlan,
    request: Request,
    tile: ColumnsTile | None = None,
) -> str:
    """Share a reduction out over blocks, and combine what they find by a second kernel."""
    nest, plan = one_reduced(sch, block, nest, plan, request.vector_bytes, fuses=False)
    slabs = _slabs(plan, request, tile)
    slab = split_reduction(sch, block, nest, plan, slabs)
    now = read_nest(sch, slab)
    own = ReductionPlan.of(now, request.vector_bytes)
    if plan.along:
        own = replace(own, along=True, vector=own.vector if own.vector == plan.vector else 1)
    rows = total(own.reduced) // plan.vector
    if tile is not None:
        tile = replace(tile, together=_together(rows, tile.deals, _TOGETHER))
    else:
        tile = _of_one_row(rows, request, plan.vector) if plan.along else _tile(own, request)
    text = reduce_across_rows(sch, slab, now, own, tile)
    now = read_nest(sch, block)
    _one_kernel(sch, block, now, ReductionPlan.of(now, request.vector_bytes), request)
    return f"{text}, in {slabs} slabs that a second kernel combines"


def _one_kernel(sch: Any, block: Any, nest: Nest, plan: ReductionPlan, request: Request) -> str:
    if plan.along:
        return reduce_along_rows(sch, block, nest, plan, request.num_threads)
    return reduce_across_rows(sch, block, nest, plan, _tile(plan, request))


def _slabs(plan: ReductionPlan, request: Request, tile: ColumnsTile | None = None) -> int:
    if any(loop.size is None for loop in (*plan.data, *plan.reduced)):
        return 1
    if plan.along:
        vectors = total(plan.reduced) // plan.vector
        tile = tile or _of_one_row(vectors, request, plan.vector)
        return choose_slabs(vectors, total(plan.data) // tile.lanes, tile)
    tile = _tile(plan, request)
    columns = plan.data[-1].size or 1
    strips = -(-columns // (tile.lanes * tile.vector))
    blocks = total(plan.data[:-1]) // tile.beside * strips
    return choose_slabs(total(plan.reduced), blocks, tile)


def _of_one_row(vectors: int, request: Request, depth: int) -> ColumnsTile:
    """A tile of one column: a row whose vectors threads take side by side."""
    deals = 1 << ((request.num_threads or _ROW_THREADS).bit_length() - 1)
    return ColumnsTile(1, 1, deals, _together(vectors, deals, _TOGETHER), depth)


def _of_runs(nest: Nest, plan: ReductionPlan, request: Request) -> ColumnsTile | None:
    """A tile of results whose elements lie in short runs side by side, as groups of channels do.

    Lanes take the runs of neighbours, so that a warp loads whole lines, and rows are dealt out.
    None where runs are lines themselves, or lie apart.
    """
    if not (plan.along and plan.data and may_factor(nest, plan)):
        return None
    run, near = plan.reduced[-1].size or 0, plan.data[-1].size or 0
    is_short = 1 < run * plan.load.bytes < LINE_BYTES and run < total(plan.reduced)
    if not is_short or nest.step(plan.load, plan.data[-1]) != run:
        return None
    threads, each = request.num_threads or _ROW_THREADS, run // plan.vector
    # Two rows at least, whose sums neighbours in a warp add up.
    lanes = divisor(near, max(1, threads // (2 * each)))
    if lanes == 1:
        return None
    deals = 2 * each
    while 2 * deals * lanes <= threads:
        deals *= 2
    rows = total(plan.reduced) // plan.vector
    return ColumnsTile(
        lanes, 1, deals, _together(rows, deals, _TOGETHER), depth=plan.vector, run=each
    )


def _together(rows: int, deals: int, most: int) -> int:
    """Loads of a thread on their way together, a divisor of all where these go up."""
    most = max(1, min(most, rows // deals))
    return most if rows % deals else divisor(rows // deals, most)


def _tile(plan: ReductionPlan, request: Request) -> ColumnsTile:
    """Lanes along the columns, and rows side by side: a power of two, or whole warps of them."""
    columns, rows = plan.data[-1].size or 1, total(plan.reduced)
    vectors = -(-columns // plan.vector)
    threads = request.num_threads or _MOST_THREADS
    row = max(WARP_SIZE, _ROW_BYTES // (plan.vector * plan.load.bytes))
    most_lanes = min(row, (request.num_threads or 2 * _THREADS) // 2)
    most = min(vectors, most_lanes)
    # Lanes without a column would have every load under a condition, which loads wait for.
    lanes = next((n for n in range(most, most // 2, -1) if vectors % n == 0), most)
    beside = 1
    if lanes * plan.vector == columns and plan.near:
        beside = divisor(plan.near, max(1, most_lanes // lanes))
    deals = 2
    while 2 * deals * lanes * beside <= threads and 2 * deals <= rows:
        deals *= 2
    if rows % deals and rows % (deals // 2) == 0 and deals > 2:
        deals //= 2
    loads = max(_TOGETHER, _BYTES_TOGETHER // (plan.vector * plan.load.bytes))
    return ColumnsTile(lanes, plan.vector, deals, _together(rows, deals, loads), beside=beside)


def may_factor(nest: Nest, plan: ReductionPlan) -> bool:
    """Whether partial sums may become an array, which has a dim for each loop of the results.

    Columns, of which a block takes a tile, are of a known number, and other sizes known or of 64
    bits: TVM 0.27 finds no constant size of a tile otherwise, as ``EndlessArrays`` tells.
    """
    dims = len(nest.block.writes[0].source.shape)
    wide = all(x.size is not None or str(x.extent.ty.dtype) == "int64" for x in nest.loops)
    known = not plan.data or plan.data[-1].size is not None
    return known and wide and not nest.is_guarded and len(plan.data) == dims
