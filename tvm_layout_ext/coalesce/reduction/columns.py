"""Share out a reduction whose load runs along its results (column sums): lanes lie along them."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.tirx import IterVar

from ...analysis.nest import Access, Nest
from ...errors import ScheduleError
from ...gpu.hardware import SECTOR_BYTES, WARP_SIZE
from ...ir.annotations import MIN_BLOCKS
from ...ir.block_bindings import iter_values
from ...ir.conditions import conjuncts
from ...ir.queries import depends_on, is_number
from ..emit import DEFAULT_THREADS, fuse
from .plan import (
    ReductionPlan,
    batched_load,
    inside,
    keep_in_flight,
    operand_loads,
    refs_of,
    total,
)

_SUMMED = -1
#: Threads that a multiprocessor should hold, each with up to 64 registers. For 2,048 of them ptxas
#: 13.0 keeps to 32 registers and starts 4 of 8 loads before the first addition; so it starts all 8.
_THREADS_HELD = 1024


@dataclass(frozen=True)
class ColumnsTile:
    """What a block of threads does at once of a reduction across the rows."""

    lanes: int  #: Threads along the columns
    vector: int  #: Columns of a thread
    deals: int  #: Rows that threads take side by side
    together: int  #: Rows of a thread whose loads are on their way together
    #: Neighbours of a row that a thread loads at once, where the load runs along the reduction: its
    #: innermost loop has as many iterations. The tile then has one column, or columns whose runs
    #: of elements lie side by side.
    depth: int = 1
    #: Neighbours along the next loop of the results that it takes whole, where rows are short.
    beside: int = 1
    #: How many of the deals take a column's run of neighbours.
    run: int = 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.lanes * self.beside * self.deals

    @property
    def is_row(self) -> bool:
        """Whether it has one column, a row of the operand or part of one."""
        return self.lanes == self.vector == 1

    @property
    def near(self) -> int:
        """Threads, neighbours in a warp, that add up the partial sums of a column.

        A power of two. Of wide tiles so many that each thread has one turn; one alone where columns
        are enough.
        """
        deals = self.deals // self.vector if self.lanes >= WARP_SIZE else self.deals
        return gcd(max(1, deals), WARP_SIZE)

    def bytes(self, plan: ReductionPlan) -> int:
        """Bytes of a row that it covers."""
        return self.lanes * self.vector * plan.load.bytes

    def __str__(self) -> str:
        if self.is_row:
            return f"{self.deals} lanes along a row, vectors of {self.depth}"
        if self.depth > 1 or self.run > 1:
            run = f"runs of {self.run} vectors of {self.depth}"
            return f"{self.lanes} {run} by {self.deals // self.run} rows"
        beside = f"{self.beside} times " if self.beside > 1 else ""
        return f"{beside}{self.lanes} lanes by {self.deals} rows, vectors of {self.vector}"


def reduce_across_rows(
    sch: Any, block: Any, nest: Nest, plan: ReductionPlan, tile: ColumnsTile
) -> str:
    """Lay lanes along the columns, and deal the rows out to the rest of the threads.

    ::

        for j, k in T.grid(N, M):       for j_0, (k_2, j_1) in T.grid(blocks, threads):
            B[j] += A[k, j]                 for k_0, k_1 in T.grid(M // (R * U), U):
                                                sums[k_2, j] += A[k, j]
                                            for j_1, k_2 in T.grid(threads, R):
                                                B[j] += sums[k_2, j]

    The partial sums meet in shared memory. No loop of theirs is moved, so that a guard stays.
    """
    outer, inner = refs_of(sch, block, nest, plan.data), refs_of(sch, block, nest, plan.reduced)
    place = _place(sch, block, nest, plan)
    sch.reorder(*outer, *inner)
    if tile.depth > 1:
        inner.pop()
    rows = total(plan.reduced) // tile.depth
    is_exact = not nest.is_guarded and rows % (tile.together * tile.deals) == 0
    # A box of TVM's that loads all rows of a thread has neighbours, which short rows do not suit.
    is_box = not is_exact and len(inner) == 1 and not _has_digits(plan.load)
    is_box = is_box and tile.bytes(plan) >= SECTOR_BYTES
    parts = [tile.deals, tile.together] if is_box else [tile.together, tile.deals]
    split = sch.split(fuse(sch, inner), [None, *parts])
    deal = split[1 if is_box else 2]
    rank = len(outer)
    partial = sch.rfactor(deal, rank - 1)
    *outer, column, steps, step, deal = sch.get_loops(partial)[: rank + 3]
    deep = sch.get_loops(partial)[rank + 3 :]
    if is_box:
        step, deal = deal, step
    grid, thread, part = _bind(sch, outer, column, (deal, steps, step, *deep), tile)
    if not tile.is_row:
        sch.annotate(grid, MIN_BLOCKS, max(1, _THREADS_HELD // tile.threads))
    for out in _sum_rows(sch, partial, thread, (steps, step, part), plan, is_exact, is_box):
        sch.set_scope(out, 0, "shared")
        _lay_out(sch, out, rank, tile)
    results = []
    if tile.near == 1:
        results = [sch.cache_write(block, index, "local") for index in range(plan.results)]
    sch.reverse_compute_at(block, grid, preserve_unit_loops=True)
    own = dict(zip(_kinds(sch, block), inside(sch, block, grid), strict=True))
    column, deal = own.pop(place), own.pop(_SUMMED)
    if tile.near == 1:
        _add_up_alone(sch, block, results, [*own.values(), column], deal, tile)
    else:
        _add_up(sch, list(own.values()), column, deal, tile)
    where = "along" if plan.along else "across"
    return f"reduction {where} the rows, {tile}"


def _bind(
    sch: Any, outer: list[Any], column: Any, inner: tuple[Any, ...], tile: ColumnsTile
) -> tuple[Any, Any, Any]:
    """Bind the loops of partial sums; return those of blocks, of threads, and of a vector."""
    deal, steps, step, *deep = inner
    grid, lane, part = sch.split(column, [None, tile.lanes, tile.vector])
    threads = [lane]
    if tile.beside > 1:
        outer[-1], own = sch.split(outer[-1], [None, tile.beside])
        threads.insert(0, own)
    if tile.run > 1:
        deal, own = sch.split(deal, [None, tile.run])
        threads.append(own)
    sch.reorder(*outer, grid, deal, *threads, steps, step, part, *deep)
    for loop in deep:
        sch.unroll(loop)
    grid = fuse(sch, [*outer, grid])
    thread = sch.fuse(deal, *threads)
    if tile.near > 1:
        warp, thread = sch.split(thread, [None, tile.near])
        sch.bind(warp, "threadIdx.y")
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return grid, thread, part


def _place(sch: Any, block: Any, nest: Nest, plan: ReductionPlan) -> int:
    """Which of the axes of a block's results its columns are."""
    values = zip(nest.block.iter_vars, iter_values(sch, block), strict=True)
    own = [value for axis, value in values if axis.iter_type != IterVar.CommReduce]
    return next(n for n, value in enumerate(own) if depends_on(value, plan.data[-1].var))


def _kinds(sch: Any, block: Any) -> list[int]:
    """Number each iterator of a block among those of its results; -1 for the one that it sums."""
    sums = [axis.iter_type == IterVar.CommReduce for axis in sch.get(block).iter_vars]
    return [_SUMMED if one else sum(not other for other in sums[:n]) for n, one in enumerate(sums)]


def _sum_rows(
    sch: Any,
    partial: Any,
    thread: Any,
    loops: tuple[Any, ...],
    plan: ReductionPlan,
    is_exact: bool,
    is_box: bool,
) -> list[Any]:
    """Let a thread sum its own rows in registers; return the blocks that store the sums."""
    steps, step, part = loops
    outs = [sch.cache_write(partial, index, "local") for index in range(plan.results)]
    for out in outs:
        sch.reverse_compute_at(out, thread, preserve_unit_loops=True)
    is_whole = plan.is_inside and not plan.has_factors and plan.places == 1
    if is_whole and is_exact:
        batched_load(sch, partial, steps, step, plan)
    else:
        sch.unroll(step)
        # Of a guarded index in several loops TVM bounds no region, even of one element.
        if is_box or is_exact or plan.vector > 1 or not _has_digits(plan.load):
            operand_loads(sch, partial, steps if is_box else step, plan, moving=True)
    sch.unroll(part)
    sch.decompose_reduction(partial, steps)
    return outs


def _has_digits(load: Access) -> bool:
    """Whether indices are quotients or remainders, as those of several loops in one are."""
    found: list[Any] = []
    look = [(kind, found.append) for kind in (tirx.FloorDiv, tirx.FloorMod)]
    for index in load.indices:
        tvm_ffi.structural_walk(index, look)
    return bool(found)


def _lay_out(sch: Any, out: Any, rank: int, tile: ColumnsTile) -> None:
    """Let lanes that store partial sums, and lanes that add them up, meet different banks.

    The columns of a vector lie in rows of their own. A warp stores along such a row, and adds up a
    few neighbouring columns, whose deals lie as far apart as these are many.
    """
    vector, columns = tile.vector, WARP_SIZE // tile.near

    def index_map(*at: Any) -> list[Any]:
        *outer, column = at
        return [*outer, column % vector, column // vector]

    if vector > 1:
        sch.transform_layout(out, ("write", 0), index_map)
    if tile.lanes < WARP_SIZE:
        # Whole lines would be mostly gaps; odd strides meet few banks twice.
        sch.storage_align(out, 0, rank - 1, 2, 1)
        return
    if vector > 1:
        sch.storage_align(out, 0, rank, WARP_SIZE, max(1, columns // vector))
    sch.storage_align(out, 0, rank - 1, WARP_SIZE, columns % WARP_SIZE)


def _add_up(sch: Any, outer: list[Any], column: Any, deal: Any, tile: ColumnsTile) -> None:
    """Let neighbouring threads add up the partial sums of a column."""
    rows = tile.threads // tile.near
    if tile.beside > 1:
        column, outer = fuse(sch, [*outer, column]), []
    turn, row = sch.split(column, [None, rows])
    step, lane = sch.split(deal, [None, tile.near])
    sch.reorder(*outer, turn, row, lane, step)
    sch.bind(row, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")


def _add_up_alone(
    sch: Any, block: Any, results: list[Any], columns: list[Any], deal: Any, tile: ColumnsTile
) -> None:
    """Let a thread add up the partial sums of a column, so that neighbours store neighbours."""
    sch.reorder(*columns, deal)
    _, thread = sch.split(fuse(sch, columns), [None, tile.threads])
    sch.bind(thread, "threadIdx.x")
    for out in results:
        sch.reverse_compute_at(out, thread, preserve_unit_loops=True)
    sch.unroll(deal)
    sch.decompose_reduction(block, deal)


def thread_per_output(
    sch: Any, block: Any, nest: Nest, plan: ReductionPlan, num_threads: int | None
) -> str:
    """Let each thread sum its own columns; nothing need be known of how many there are."""
    _check_bounds(sch, block, nest)
    threads = num_threads or DEFAULT_THREADS
    outer, inner = refs_of(sch, block, nest, plan.data), refs_of(sch, block, nest, plan.reduced)
    sch.reorder(*outer, *inner)
    outs = [sch.cache_write(block, index, "local") for index in range(plan.results)]
    # Vectors are cut off first: of several loops in one TVM bounds none.
    outer[-1], part = sch.split(outer[-1], [None, plan.vector])
    # Loops of one iteration are 0 to TVM: no thread is in it, and stores would lose their guard.
    if all(is_number(sch.get(loop).extent, 1) for loop in outer):
        threads = 1
    grid, thread = sch.split(fuse(sch, outer), [None, threads])
    step = fuse(sch, inner)
    sch.reorder(grid, thread, step, part)
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    for out in outs:
        sch.reverse_compute_at(out, thread, preserve_unit_loops=True)
        if plan.vector > 1:
            sch.vectorize(inside(sch, out, thread)[-1])
    operand_loads(sch, block, keep_in_flight(sch, step), plan, moving=True)
    sch.unroll(part)
    sch.decompose_reduction(block, inside(sch, block, thread)[0])
    return f"reduction, a thread for each result, {threads} threads, vectors of {plan.vector}"


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
