"""Share out a reduction whose load runs along its results (column sums): lanes lie along them."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm.tirx import IterVar

from ...analysis.nest import Nest, element_bytes
from ...errors import ScheduleError
from ...gpu.hardware import WARP_SIZE
from ...ir.annotations import MIN_BLOCKS
from ...ir.block_bindings import iter_values
from ...ir.conditions import conjuncts
from ...ir.queries import depends_on
from ..emit import DEFAULT_THREADS, fuse
from .partial_sums import SumsTile, lay_out
from .plan import (
    ENOUGH_BLOCKS,
    ENOUGH_THREADS,
    MAX_THREADS,
    ReductionPlan,
    batched_load,
    divisor,
    inside,
    keep_in_flight,
    loads_together,
    operand_loads,
    refs_of,
    still_loading,
    total,
    vector_load,
)

#: Bytes of a row that the lanes of column sums cover, and the least that DRAM likes.
_WIDE_BYTES, _NARROW_BYTES = 128, 64
#: Threads that a multiprocessor should hold, each with up to 64 registers. For 2,048 of them ptxas
#: 13.0 keeps to 32 registers and starts 4 of 8 loads before the first addition; so it starts all 8.
_THREADS_HELD = 1024
#: Threads of a block of 32 columns: 128 blocks of 8 lanes by 16 rows add up 16 slabs of 4096
#: columns with one load a thread (as the hand-written kernels of :mod:`.slabs` did).
_FEW_THREADS = 128
#: Loads that a thread may do one after the other where there are few threads.
_FEW_LOADS = 16


def reduce_across_rows(
    sch: Any, block: Any, nest: Nest, plan: ReductionPlan, num_threads: int | None
) -> tuple[str, list[Any]]:
    """Lay lanes along the columns, and deal the rows out to the rest of the threads.

    The partial sums meet in shared memory, a row of them for each column, and each column is added
    up by a thread, or by a warp where there are more threads than columns.
    """
    data, reduced, vector = plan.data, plan.reduced, plan.vector
    square = _square(plan, num_threads or DEFAULT_THREADS)
    most = num_threads or MAX_THREADS
    width = square // vector or _lanes(plan, most)
    # TVM loses the guard of a split with a rest when it factors a reduction.
    deep = _deep(plan, square, most) if square else divisor(total(reduced), most // width)
    wide = bool(square) and _fits_wide(plan, width, sch.get(block).writes[0].source)
    near = WARP_SIZE if wide else min(width, max(1, WARP_SIZE // vector))
    warps = min(width * vector, WARP_SIZE, _ceil_power(-(-deep * width // WARP_SIZE)))
    rank = len(data)
    known = all(loop.size is not None for loop in nest.loops)
    together = loads_together(total(reduced) // deep) if known else 1
    outer, inner = refs_of(sch, block, nest, data), refs_of(sch, block, nest, reduced)
    sch.reorder(*outer, *inner)
    partial = sch.rfactor(sch.split(fuse(sch, inner), [None, together, deep])[2], rank)
    sums = sch.cache_write(partial, 0, "local")
    sch.set_scope(sums, 0, "shared")
    sum_up = _sum_by_threads if square else _sum_by_warps
    grid = sum_up(sch, block, sums, width * vector, warps)
    thread = _collect_sums(sch, sums, grid, near, vector, warps)
    sch.compute_at(partial, thread, preserve_unit_loops=True)
    cache = _sum_rows(sch, partial, thread, plan, known)
    if wide:
        sch.annotate(grid, MIN_BLOCKS, max(1, _THREADS_HELD // square))
        _rows_by_lane(sch, sums, rank)
    else:
        size = element_bytes(sch.get(block).writes[0].source)
        lay_out(sch, sums, rank, SumsTile(width * vector, deep, near, vector, size, bool(square)))
    text = f"reduction across the rows, {width} lanes by {deep} rows, vectors of {vector}"
    return text, still_loading(sch, [cache], partial)


def _sum_rows(sch: Any, partial: Any, thread: Any, plan: ReductionPlan, known: bool) -> Any:
    """Order the loops of a thread's own sums; return the block that loads."""
    deal, *rest = inside(sch, partial, thread)
    # One loop for each iterator of the block, in its order.
    reduces = [var.iter_type == IterVar.CommReduce for var in sch.get(partial).iter_vars][1:]
    steps, step = (loop for loop, sums in zip(rest, reduces, strict=True) if sums)
    column = fuse(sch, [loop for loop, sums in zip(rest, reduces, strict=True) if not sums])
    sch.reorder(deal, steps, step, column)
    around = len(sch.get_loops(partial)) - 4
    if known and plan.is_inside:
        cache = batched_load(sch, partial, steps, step, plan)
    else:
        cache = vector_load(sch, partial, step, plan.vector)
    sch.unroll(column)
    first = sch.get_loops(partial)[around + 1]
    for loop in sch.get_loops(sch.decompose_reduction(partial, first))[around:]:
        sch.unroll(loop)
    return cache


def _fits_wide(plan: ReductionPlan, width: int, result: Any) -> bool:
    """Whether the 32 lanes of a warp can lie along one row, and blocks of them share out the rows.

    Their partial sums then go to shared memory in rows of 33 words. A hand-written kernel of this
    form sums slabs of 32768x4096 halves in 65.5 us on an H200, and warps of 4 lanes along 8 rows do
    in 67.7 us (``benchmarks/results/h200_reductions.json``).
    """
    size = plan.data[-1].size
    whole = size is not None and size % (width * plan.vector) == 0
    return whole and width % WARP_SIZE == 0 and element_bytes(result) == 4


def _rows_by_lane(sch: Any, sums: Any, rank: int) -> None:
    """Lay the partial sums of a deal side by side, 32 columns and a gap of one.

    A lane stores ``vector`` neighbouring columns one by one. Lanes that are 32 columns apart would
    meet the same bank: with the gap they meet the next one, and a warp meets each bank once.
    """

    def index_map(*at: Any) -> list[Any]:
        column, deal = at[rank - 1 :]
        return [*at[: rank - 1], deal, column // WARP_SIZE, column % WARP_SIZE]

    sch.transform_layout(sums, ("write", 0), index_map)
    sch.storage_align(sums, 0, rank, WARP_SIZE, 1)


def thread_per_output(
    sch: Any, block: Any, nest: Nest, plan: ReductionPlan, num_threads: int | None
) -> tuple[str, list[Any]]:
    """Let each thread sum its own columns, where nobody knows how many there are.

    Partial sums in shared memory are not for such: TVM 0.27 gives a tile of ``min(16, k - first)``
    aligned rows a negative extent.
    """
    _check_bounds(sch, block, nest)
    threads = num_threads or DEFAULT_THREADS
    outer, inner = refs_of(sch, block, nest, plan.data), refs_of(sch, block, nest, plan.reduced)
    sch.reorder(*outer, *inner)
    outs = [sch.cache_write(block, index, "local") for index in range(plan.results)]
    grid, thread, part = sch.split(fuse(sch, outer), [None, threads, plan.vector])
    step = fuse(sch, inner)
    sch.reorder(grid, thread, step, part)
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    for out in outs:
        sch.reverse_compute_at(out, thread, preserve_unit_loops=True)
    caches = operand_loads(sch, block, keep_in_flight(sch, step), plan, moving=True)
    sch.unroll(part)
    sch.decompose_reduction(block, inside(sch, block, thread)[0])
    text = f"reduction across the rows, a column a thread, {threads} threads, vectors of "
    return f"{text}{plan.vector}", caches


def _check_bounds(sch: Any, block: Any, nest: Nest) -> None:
    """Refuse guards of results but the ends of their axes, all that TVM 0.27 puts around stores."""
    pairs = zip(nest.block.iter_vars, iter_values(sch, block), strict=True)
    bounds = [value < axis.dom.extent for axis, value in pairs]
    data = [loop.var for loop in nest.loops if not loop.is_reduction]
    for guard in conjuncts(nest.predicate):
        is_end = any(tvm_ffi.structural_equal(guard, bound) for bound in bounds)
        if not is_end and any(depends_on(guard, var) for var in data):
            raise ScheduleError(
                f"{nest.block.name_hint} runs only where {guard} holds, which is not the end of an "
                "axis, and would store other results, too"
            )


def _square(plan: ReductionPlan, most: int) -> int:
    """Threads of a block in which each sums a vector of columns and adds up one column, or 0.

    As many rows go side by side as a vector has elements, so that there are as many partial sums of
    a column as columns of a thread. It takes results enough to give each thread one, or few rows.
    """
    columns, rows = total(plan.data), total(plan.reduced)
    many = 4 * columns >= ENOUGH_THREADS or rows <= _FEW_LOADS * plan.vector
    if plan.vector == 1 or rows % plan.vector or not many:
        return 0
    threads = 1 << (most.bit_length() - 1)
    while threads > WARP_SIZE and columns < threads * ENOUGH_BLOCKS:
        threads //= 2
    return threads


def _deep(plan: ReductionPlan, threads: int, most: int) -> int:
    """Rows side by side where each thread sums a vector of columns: more in small blocks.

    As many rows as a vector has elements make a thread a column. Blocks of one warp deal out more
    rows, as far as there are some, to up to ``_FEW_THREADS`` threads; the first warp adds up.
    """
    deep, rows = plan.vector, total(plan.reduced)
    if threads > WARP_SIZE:
        return deep
    while 2 * threads <= min(_FEW_THREADS, most) and rows % (2 * deep) == 0:
        deep, threads = 2 * deep, 2 * threads
    return deep


def _lanes(plan: ReductionPlan, most: int) -> int:
    """Lanes, up to some, of a block along the columns where its rows go to a warp each or more."""
    size = plan.vector * plan.load.bytes
    lanes = max(1, _WIDE_BYTES // size)
    while lanes > most:
        lanes //= 2
    while lanes * size > _NARROW_BYTES and total(plan.data) < (lanes * plan.vector * ENOUGH_BLOCKS):
        lanes //= 2
    return lanes


def _ceil_power(value: int) -> int:
    return 1 << max(0, (value - 1).bit_length())


def _sum_by_warps(sch: Any, block: Any, sums: Any, columns: int, warps: int) -> Any:
    """Let each warp add up the partial sums of a column; return the loop over the blocks."""
    *outer, column, deal = sch.get_loops(block)
    grid, turn, warp = sch.split(column, [None, columns // warps, warps])
    step, lane = sch.split(deal, [None, WARP_SIZE])
    sch.reorder(*outer, grid, turn, warp, lane, step)
    grid = fuse(sch, [*outer, grid])
    sch.bind(grid, "blockIdx.x")
    sch.bind(warp, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    sch.compute_at(sums, grid, preserve_unit_loops=True)
    return grid


def _sum_by_threads(sch: Any, block: Any, sums: Any, columns: int, warps: int) -> Any:
    """Let each thread add up the partial sums of a column; return the loop over the blocks.

    A warp then stores neighbouring results. There are as many columns as threads, or one warp's.
    """
    out = sch.cache_write(block, 0, "local")
    *outer, column = sch.get_loops(out)
    if columns < warps * WARP_SIZE:
        grid, lane = sch.split(column, [None, WARP_SIZE])
        # The other warps have no column: one iteration, split among all of them.
        _, warp = sch.split(sch.add_unit_loop(out), [None, warps])
        sch.reorder(warp, lane)
    else:
        grid, warp, lane = sch.split(column, [None, warps, WARP_SIZE])
    grid = fuse(sch, [*outer, grid])
    sch.bind(grid, "blockIdx.x")
    sch.bind(warp, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    for part, at in ((block, grid), (sums, grid), (block, lane)):
        sch.compute_at(part, at, preserve_unit_loops=True)
    inner = inside(sch, block, lane)
    for loop in inner:
        sch.unroll(loop)
    sch.decompose_reduction(block, inner[0])
    return grid


def _collect_sums(sch: Any, sums: Any, grid: Any, near: int, vector: int, warps: int) -> Any:
    """Put the partial sums of all threads into shared memory; return the loop over the threads.

    A warp covers ``near`` vectors of columns by neighbouring rows, and other warps lie beside it.
    """
    *columns, deal = inside(sch, sums, grid)
    strip, lane, part = sch.split(fuse(sch, columns), [None, near, vector])
    sch.reorder(strip, deal, lane, part)
    _, warp, thread = sch.split(sch.fuse(strip, deal, lane), [None, warps, WARP_SIZE])
    sch.bind(warp, "threadIdx.y")
    sch.bind(thread, "threadIdx.x")
    sch.unroll(part)
    return thread
