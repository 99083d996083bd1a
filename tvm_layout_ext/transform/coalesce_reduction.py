"""Share out a reduction so that its loads are full and wide.

Where the load runs along the reduction (row sums), neighbouring lanes take neighbouring elements of
a row and add up their sums at the end. Where it runs along the result (column sums), lanes lie
along the columns and the rows are dealt out to the warps. Where that leaves multiprocessors idle,
the reduction is first cut into slabs (:mod:`.coalesce_slabs`), and a second kernel adds these up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm.tirx import IterVar

from ..analysis.access import Access, Loop, Nest, read_nest
from ..analysis.mapping import merged_run, own_order
from ..analysis.sectors import stand_in
from ..errors import ScheduleError
from ..hardware import WARP_SIZE
from .coalesce_direct import DEFAULT_THREADS, fuse
from .coalesce_slabs import choose_slabs, cut

__all__ = ["schedule_reduction"]

_MAX_THREADS = 1024
#: Threads that keep a large GPU busy: 132 multiprocessors with 1,024 each.
_ENOUGH_THREADS = 132 * 1024
#: Blocks that keep it busy, if each has many threads.
_ENOUGH_BLOCKS = 128
#: Bytes of a row that the lanes of column sums cover, and the least that DRAM likes.
_WIDE_BYTES, _NARROW_BYTES = 128, 64
#: Loads that a thread may do one after the other where there are few threads.
_FEW_LOADS = 16
#: Loads of a thread that are on their way together.
_IN_FLIGHT = 8
#: Threads of a block that sums rows: 1.5% faster on an H200 than 256 with as many loads each.
_ROW_THREADS = 512


def schedule_reduction(
    sch: Any, block: Any, nest: Nest, num_threads: int | None, vector_bytes: int
) -> tuple[str, list[Any]]:
    """Bind a whole reduction nest.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
    block : SBlockRV
    nest : Nest
        The block as it is, all its loops free.
    num_threads : int, optional
        Threads of a block.
    vector_bytes : int
        Bytes of the widest load of a thread.

    Returns
    -------
    tuple
        What was chosen, for the report, and the blocks that now access global memory.
    """
    plan = _Plan.of(nest, vector_bytes)
    slabs = choose_slabs(plan.load, plan.data, plan.reduced, along=plan.along)
    if slabs == 1:
        return _one_kernel(sch, block, nest, plan, num_threads)
    (outermost,) = _refs(sch, block, nest, plan.reduced[:1])
    partial = cut(sch, block, outermost, slabs, len(plan.data) if plan.along else 0)
    caches = []
    texts = []
    for part in (partial, block):
        now = read_nest(sch, part)
        text, touching = _one_kernel(sch, part, now, _Plan.of(now, vector_bytes), num_threads)
        caches += touching
        texts.append(text)
    # The second kernel reads next to nothing; counting it an iteration would give it half a say.
    return f"{texts[0]}, in {slabs} slabs that a second kernel adds up", caches[:1]


@dataclass(frozen=True)
class _Plan:
    """What the main load of a reduction makes of its loops.

    Attributes
    ----------
    load : Access
        The load with the most loops.
    data, reduced : list of Loop
        In the load's own order.
    along : bool
        Whether the load runs along the reduction.
    vector : int
        Neighbours that a thread loads at once.
    """

    load: Access
    data: list[Loop]
    reduced: list[Loop]
    along: bool
    vector: int

    @classmethod
    def of(cls, nest: Nest, vector_bytes: int) -> _Plan:
        load = _main_load(nest)
        data = [loop for loop in own_order(load, nest, nest.loops) if not loop.is_reduction]
        reduced = [loop for loop in own_order(load, nest, nest.loops) if loop.is_reduction]
        inner = max(
            (group for group in (data, reduced) if group),
            key=lambda group: _step(load, nest, group[-1]) == 1,
        )
        vector = 1
        if _step(load, nest, inner[-1]) == 1:
            run = merged_run([load], nest.loops, inner)
            vector = load.vector(inner[len(inner) - run :], vector_bytes)
            while vector > 1 and stand_in(inner[-1].extent) % vector:
                vector //= 2
        return cls(load, data, reduced, inner is reduced, vector)


def _one_kernel(
    sch: Any, block: Any, nest: Nest, plan: _Plan, num_threads: int | None
) -> tuple[str, list[Any]]:
    share_out = _along_rows if plan.along else _along_columns
    return share_out(sch, block, nest, plan, num_threads)


def _main_load(nest: Nest) -> Access:
    stores = {access.name for access in nest.accesses if access.kind == "store"}
    loads = [a for a in nest.of_scope("global") if a.kind == "load" and a.name not in stores]
    if not loads:
        raise ScheduleError(
            f"Reduction block {nest.block.name_hint} loads nothing from global memory."
        )
    return max(loads, key=lambda a: sum(step != 0 for step in a.steps))


def _step(access: Access, nest: Nest, loop: Loop) -> Any:
    return access.steps[next(i for i, other in enumerate(nest.loops) if other is loop)]


def _total(loops: Sequence[Loop]) -> int:
    return prod(stand_in(loop.extent) for loop in loops)


def _refs(sch: Any, block: Any, nest: Nest, loops: Sequence[Loop]) -> list[Any]:
    refs = sch.get_loops(block)
    return [refs[next(i for i, own in enumerate(nest.loops) if own is loop)] for loop in loops]


def _along_rows(
    sch: Any, block: Any, nest: Nest, plan: _Plan, num_threads: int | None
) -> tuple[str, list[Any]]:
    """Deal a row out to the lanes of a warp, or of more warps where there are few rows."""
    data, reduced, vector = plan.data, plan.reduced, plan.vector
    rows, groups = _total(data), -(-_total(reduced) // vector)
    most = num_threads or _MAX_THREADS
    lanes = WARP_SIZE
    while lanes < most and rows * lanes < _ENOUGH_THREADS and lanes < groups:
        lanes *= 2
    if len(reduced) > 1:
        lanes = _divisor(groups, lanes)
    rows_at_once = max(1, (num_threads or _row_threads(rows * lanes)) // lanes)
    outer, inner = _refs(sch, block, nest, data), _refs(sch, block, nest, reduced)
    sch.reorder(*outer, *inner)
    inner = fuse(sch, inner)
    row = fuse(sch, outer) if outer else sch.add_unit_loop(inner)
    grid, row = sch.split(row, [None, rows_at_once])
    step, lane, part = sch.split(inner, [None, lanes, vector])
    sch.reorder(grid, row, lane, step, part)
    sch.bind(grid, "blockIdx.x")
    sch.bind(row, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    cache = _vector_load(sch, block, _keep_in_flight(sch, step), vector)
    sch.unroll(part)
    text = f"reduction along the rows, {rows_at_once} rows of {lanes} lanes, vectors of {vector}"
    return text, [cache]


def _row_threads(threads: int) -> int:
    """Threads of a block, of so many in all: fewer where that makes more multiprocessors busy."""
    return _ROW_THREADS if threads >= _ROW_THREADS * _ENOUGH_BLOCKS else DEFAULT_THREADS


def _along_columns(
    sch: Any, block: Any, nest: Nest, plan: _Plan, num_threads: int | None
) -> tuple[str, list[Any]]:
    """Lay lanes along the columns, and deal the rows out to the rest of the threads.

    The partial sums meet in shared memory, a row of them for each column, and each column is added
    up by a thread, or by a warp where there are more threads than columns.
    """
    data, reduced, vector = plan.data, plan.reduced, plan.vector
    square = _square(plan, num_threads or DEFAULT_THREADS)
    width = square // vector or _lanes(plan)
    # TVM loses the guard of a split with a rest when it factors a reduction.
    deep = vector if square else _divisor(_total(reduced), (num_threads or _MAX_THREADS) // width)
    near = min(width, max(1, WARP_SIZE // vector))
    warps = min(width * vector, WARP_SIZE, _ceil_power(-(-deep * width // WARP_SIZE)))
    rank = len(data)
    outer, inner = _refs(sch, block, nest, data), _refs(sch, block, nest, reduced)
    sch.reorder(*outer, *inner)
    partial = sch.rfactor(sch.split(fuse(sch, inner), [None, deep])[1], rank)
    sums = sch.cache_write(partial, 0, "local")
    sch.set_scope(sums, 0, "shared")
    sum_up = _sum_by_threads if square else _sum_by_warps
    grid = sum_up(sch, block, sums, width * vector, warps)
    thread = _collect_sums(sch, sums, grid, near, vector, warps)
    sch.storage_align(sums, 0, rank - 1, *_skew(near, vector))
    sch.compute_at(partial, thread, preserve_unit_loops=True)
    deal, *rest = _inside(sch, partial, thread)
    # One loop for each iterator of the block, in its order.
    sums_over = [var.iter_type == IterVar.CommReduce for var in sch.get(partial).iter_vars][1:]
    step = rest.pop(sums_over.index(True))
    column = fuse(sch, rest)
    sch.reorder(deal, step, column)
    around = len(sch.get_loops(partial)) - 3
    cache = _vector_load(sch, partial, _keep_in_flight(sch, step), vector)
    sch.unroll(column)
    first = sch.get_loops(partial)[around + 1]
    for loop in sch.get_loops(sch.decompose_reduction(partial, first))[around:]:
        sch.unroll(loop)
    text = f"reduction across the rows, {width} lanes by {deep} rows, vectors of {vector}"
    return text, [cache]


def _square(plan: _Plan, most: int) -> int:
    """Threads of a block in which each sums a vector of columns and adds up one column, or 0.

    As many rows go side by side as a vector has elements, so that there are as many partial sums of
    a column as columns of a thread. It takes results enough to give each thread one, or few rows.
    """
    columns, rows = _total(plan.data), _total(plan.reduced)
    many = 4 * columns >= _ENOUGH_THREADS or rows <= _FEW_LOADS * plan.vector
    if plan.vector == 1 or rows % plan.vector or not many:
        return 0
    threads = 1 << (most.bit_length() - 1)
    while threads > WARP_SIZE and columns < threads * _ENOUGH_BLOCKS:
        threads //= 2
    return threads


def _lanes(plan: _Plan) -> int:
    """Lanes of a block along the columns where its rows go to a warp each or more."""
    size = plan.vector * plan.load.bytes
    lanes = max(1, _WIDE_BYTES // size)
    while lanes * size > _NARROW_BYTES and _total(plan.data) < (
        lanes * plan.vector * _ENOUGH_BLOCKS
    ):
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

    A warp then stores neighbouring results, but there must be as many columns as threads.
    """
    out = sch.cache_write(block, 0, "local")
    *outer, column = sch.get_loops(out)
    grid, warp, lane = sch.split(column, [None, warps, WARP_SIZE])
    grid = fuse(sch, [*outer, grid])
    sch.bind(grid, "blockIdx.x")
    sch.bind(warp, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    for part, at in ((block, grid), (sums, grid), (block, lane)):
        sch.compute_at(part, at, preserve_unit_loops=True)
    inner = _inside(sch, block, lane)
    for loop in inner:
        sch.unroll(loop)
    sch.decompose_reduction(block, inner[0])
    return grid


def _collect_sums(sch: Any, sums: Any, grid: Any, near: int, vector: int, warps: int) -> Any:
    """Put the partial sums of all threads into shared memory; return the loop over the threads.

    A warp covers ``near`` vectors of columns by neighbouring rows, and other warps lie beside it.
    """
    *columns, deal = _inside(sch, sums, grid)
    strip, lane, part = sch.split(fuse(sch, columns), [None, near, vector])
    sch.reorder(strip, deal, lane, part)
    _, warp, thread = sch.split(sch.fuse(strip, deal, lane), [None, warps, WARP_SIZE])
    sch.bind(warp, "threadIdx.y")
    sch.bind(thread, "threadIdx.x")
    sch.unroll(part)
    return thread


def _inside(sch: Any, block: Any, loop: Any) -> list[Any]:
    """Loops of a block inside another loop."""
    loops = sch.get_loops(block)
    outer = sch.get(loop)
    return loops[1 + next(i for i, own in enumerate(loops) if sch.get(own).same_as(outer)) :]


def _skew(near: int, vector: int) -> tuple[int, int]:
    """Alignment of the rows of partial sums, so that a warp's writes meet every bank once.

    A warp goes along ``near`` vectors of columns, which lie ``vector`` rows apart, and then along
    the row: vectors of columns should be as many banks apart as lanes go along the row.
    """
    apart = max(1, WARP_SIZE // (near * vector))
    return 2 * apart, apart


def _divisor(number: int, most: int) -> int:
    """Largest divisor up to a bound."""
    return next(d for d in range(min(number, most), 0, -1) if number % d == 0)


def _keep_in_flight(sch: Any, step: Any) -> Any:
    """Unroll some steps of a serial loop, so that their loads are on their way together."""
    extent = sch.get(step).extent
    count = stand_in(extent)
    together = min(_IN_FLIGHT, count & -count)
    _, inner = sch.split(step, [None, together])
    sch.unroll(inner)
    return inner


def _vector_load(sch: Any, partial: Any, step: Any, vector: int) -> Any:
    """Load into registers first, as a vector."""
    cache = sch.cache_read(partial, _load_index(sch, partial), "local")
    sch.compute_at(cache, step, preserve_unit_loops=True)
    if vector > 1:
        sch.vectorize(sch.get_loops(cache)[-1])
    return cache


def _load_index(sch: Any, partial: Any) -> int:
    """Of the operands that a partial sum reads, the largest."""
    stmt = sch.get(partial)
    own = stmt.writes[0].source
    sizes = [
        -1 if region.source.same_as(own) else prod(stand_in(n) for n in region.source.shape)
        for region in stmt.reads
    ]
    return sizes.index(max(sizes))
