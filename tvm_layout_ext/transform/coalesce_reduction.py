"""Share out a reduction so that its loads are full and wide.

Where the load runs along the reduction (row sums), neighbouring lanes take neighbouring elements of
a row and add up their sums at the end. Where it runs along the result (column sums), lanes lie
along the columns and the rows are dealt out to the warps.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ..analysis.access import Access, Loop, Nest
from ..analysis.mapping import merged_run, own_order
from ..analysis.sectors import stand_in
from ..errors import ScheduleError
from ..hardware import WARP_SIZE
from .coalesce_direct import DEFAULT_THREADS, fuse

__all__ = ["schedule_reduction"]

_MAX_THREADS = 1024
#: Threads that keep a large GPU busy: 132 multiprocessors with 1,024 each.
_ENOUGH_THREADS = 132 * 1024
#: Blocks that keep it busy, if each has many threads.
_ENOUGH_BLOCKS = 128
#: Bytes of a row that the lanes of column sums cover, and the least that DRAM likes.
_WIDE_BYTES, _NARROW_BYTES = 128, 64
#: Loads of a thread that are on their way together.
_IN_FLIGHT = 8


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
    if inner is reduced:
        return _along_rows(sch, block, nest, data, reduced, vector, num_threads)
    return _along_columns(sch, block, nest, data, reduced, vector, load.bytes, num_threads)


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
    sch: Any,
    block: Any,
    nest: Nest,
    data: list[Loop],
    reduced: list[Loop],
    vector: int,
    num_threads: int | None,
) -> tuple[str, list[Any]]:
    """Deal a row out to the lanes of a warp, or of more warps where there are few rows."""
    rows, groups = _total(data), -(-_total(reduced) // vector)
    most = num_threads or _MAX_THREADS
    lanes = WARP_SIZE
    while lanes < most and rows * lanes < _ENOUGH_THREADS and lanes < groups:
        lanes *= 2
    if len(reduced) > 1:
        lanes = _divisor(groups, lanes)
    rows_at_once = max(1, (num_threads or DEFAULT_THREADS) // lanes)
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


def _along_columns(
    sch: Any,
    block: Any,
    nest: Nest,
    data: list[Loop],
    reduced: list[Loop],
    vector: int,
    size: int,
    num_threads: int | None,
) -> tuple[str, list[Any]]:
    """Lay lanes along the columns, and deal the rows out to the rest of the threads.

    The partial sums meet in shared memory, a row of them for each column, and each column is added
    up by a warp.
    """
    columns = _total(data)
    width = max(1, _WIDE_BYTES // (vector * size))
    while width * vector * size > _NARROW_BYTES and columns < width * vector * _ENOUGH_BLOCKS:
        width //= 2
    # TVM loses the guard of a split with a rest when it factors a reduction.
    deep = _divisor(_total(reduced), max(1, (num_threads or _MAX_THREADS) // width))
    warps = min(width * vector, WARP_SIZE, _ceil_power(-(-deep * width // WARP_SIZE)))
    rank = len(data)
    outer, inner = _refs(sch, block, nest, data), _refs(sch, block, nest, reduced)
    sch.reorder(*outer, *inner)
    partial = sch.rfactor(sch.split(fuse(sch, inner), [None, deep])[1], rank)
    sums = sch.cache_write(partial, 0, "local")
    sch.set_scope(sums, 0, "shared")
    grid = _sum_columns(sch, block, width * vector, warps)
    thread = _collect_sums(sch, sums, grid, vector, warps)
    sch.storage_align(sums, 0, rank - 1, *_skew(width, vector))
    sch.compute_at(partial, thread, preserve_unit_loops=True)
    deal, *part, step = _inside(sch, partial, thread)
    column = fuse(sch, part)
    sch.reorder(deal, step, column)
    around = len(sch.get_loops(partial)) - 3
    cache = _vector_load(sch, partial, _keep_in_flight(sch, step), vector)
    sch.unroll(column)
    first = sch.get_loops(partial)[around + 1]
    for loop in sch.get_loops(sch.decompose_reduction(partial, first))[around:]:
        sch.unroll(loop)
    text = f"reduction across the rows, {width} lanes by {deep} rows, vectors of {vector}"
    return text, [cache]


def _ceil_power(value: int) -> int:
    return 1 << max(0, (value - 1).bit_length())


def _sum_columns(sch: Any, block: Any, columns: int, warps: int) -> Any:
    """Let each warp add up the partial sums of a column; return the loop over the blocks."""
    *outer, column, deal = sch.get_loops(block)
    grid, turn, warp = sch.split(column, [None, columns // warps, warps])
    step, lane = sch.split(deal, [None, WARP_SIZE])
    sch.reorder(*outer, grid, turn, warp, lane, step)
    grid = fuse(sch, [*outer, grid])
    sch.bind(grid, "blockIdx.x")
    sch.bind(warp, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    return grid


def _collect_sums(sch: Any, sums: Any, grid: Any, vector: int, warps: int) -> Any:
    """Put the partial sums of all threads into shared memory; return the loop over the threads."""
    sch.compute_at(sums, grid, preserve_unit_loops=True)
    *columns, deal = _inside(sch, sums, grid)
    lane, part = sch.split(fuse(sch, columns), [None, vector])
    sch.reorder(deal, lane, part)
    _, warp, thread = sch.split(sch.fuse(deal, lane), [None, warps, WARP_SIZE])
    sch.bind(warp, "threadIdx.y")
    sch.bind(thread, "threadIdx.x")
    sch.unroll(part)
    return thread


def _inside(sch: Any, block: Any, loop: Any) -> list[Any]:
    """Loops of a block inside another loop."""
    loops = sch.get_loops(block)
    outer = sch.get(loop)
    return loops[1 + next(i for i, own in enumerate(loops) if sch.get(own).same_as(outer)) :]


def _skew(width: int, vector: int) -> tuple[int, int]:
    """Alignment of the rows of partial sums, so that a warp's writes meet every bank once.

    Lanes go along ``width`` vectors of columns, which lie ``vector`` rows apart, and then along the
    row: vectors of columns should be as many banks apart as lanes go along the row.
    """
    apart = max(1, WARP_SIZE // (width * vector))
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
