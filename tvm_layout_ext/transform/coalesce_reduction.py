"""Share out a reduction so that its loads are full and wide.

Where the load runs along the reduction (row sums), neighbouring lanes take neighbouring elements of
a row and add up their sums at the end. Where it runs along the result (column sums), lanes lie
along the columns and the rows are dealt out to the warps. Where that leaves multiprocessors idle,
the reduction is first cut into slabs (:mod:`.coalesce_slabs`), and a second kernel adds these up.
"""

from __future__ import annotations

from typing import Any

from ..analysis.access import Nest, read_nest
from ..hardware import WARP_SIZE
from .coalesce_columns import a_column_each, along_columns
from .coalesce_direct import DEFAULT_THREADS, fuse
from .coalesce_reduction_plan import (
    ENOUGH_BLOCKS,
    ENOUGH_THREADS,
    MAX_THREADS,
    Plan,
    divisor,
    keep_in_flight,
    refs_of,
    total,
    vector_load,
)
from .coalesce_slabs import choose_slabs, cut

__all__ = ["schedule_reduction"]

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
    plan = Plan.of(nest, vector_bytes)
    slabs = choose_slabs(plan.load, plan.data, plan.reduced, along=plan.along)
    if slabs == 1:
        return _one_kernel(sch, block, nest, plan, num_threads)
    (outermost,) = refs_of(sch, block, nest, plan.reduced[:1])
    partial = cut(sch, block, outermost, slabs, len(plan.data) if plan.along else 0)
    caches = []
    texts = []
    for part in (partial, block):
        now = read_nest(sch, part)
        text, touching = _one_kernel(sch, part, now, Plan.of(now, vector_bytes), num_threads)
        caches += touching
        texts.append(text)
    # The second kernel reads next to nothing; counting it an iteration would give it half a say.
    return f"{texts[0]}, in {slabs} slabs that a second kernel adds up", caches[:1]


def _one_kernel(
    sch: Any, block: Any, nest: Nest, plan: Plan, num_threads: int | None
) -> tuple[str, list[Any]]:
    share_out = _along_rows if plan.along else along_columns
    if not plan.along and plan.data[-1].size is None:
        share_out = a_column_each
    return share_out(sch, block, nest, plan, num_threads)


def _along_rows(
    sch: Any, block: Any, nest: Nest, plan: Plan, num_threads: int | None
) -> tuple[str, list[Any]]:
    """Deal a row out to the lanes of a warp, or of more warps where there are few rows."""
    data, reduced, vector = plan.data, plan.reduced, plan.vector
    rows, groups = total(data), -(-total(reduced) // vector)
    most = num_threads or MAX_THREADS
    lanes = WARP_SIZE
    while lanes < most and rows * lanes < ENOUGH_THREADS and lanes < groups:
        lanes *= 2
    if len(reduced) > 1:
        lanes = divisor(groups, lanes)
    rows_at_once = max(1, (num_threads or _row_threads(rows * lanes)) // lanes)
    outer, inner = refs_of(sch, block, nest, data), refs_of(sch, block, nest, reduced)
    sch.reorder(*outer, *inner)
    inner = fuse(sch, inner)
    row = fuse(sch, outer) if outer else sch.add_unit_loop(inner)
    grid, row = sch.split(row, [None, rows_at_once])
    step, lane, part = sch.split(inner, [None, lanes, vector])
    sch.reorder(grid, row, lane, step, part)
    sch.bind(grid, "blockIdx.x")
    sch.bind(row, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    cache = vector_load(sch, block, keep_in_flight(sch, step), vector)
    sch.unroll(part)
    text = f"reduction along the rows, {rows_at_once} rows of {lanes} lanes, vectors of {vector}"
    return text, [cache]


def _row_threads(threads: int) -> int:
    """Threads of a block, of so many in all: fewer where that makes more multiprocessors busy."""
    return _ROW_THREADS if threads >= _ROW_THREADS * ENOUGH_BLOCKS else DEFAULT_THREADS
