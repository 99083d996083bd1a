"""Share out a reduction so that its loads are full and wide.

Where the load runs along the reduction (row sums), neighbouring lanes take neighbouring elements of
a row and add up their sums at the end. Where it runs along the result (column sums), lanes lie
along the columns and the rows are dealt out to the warps. Where that leaves multiprocessors idle,
the reduction is first cut into slabs (:mod:`.coalesce_slabs`), and a second kernel adds these up.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from tvm import tirx

from ..analysis.access import Nest, read_nest
from ..analysis.evaluate import stand_in
from ..errors import ScheduleError
from ..hardware import WARP_SIZE
from .coalesce_columns import a_column_each, along_columns
from .coalesce_direct import DEFAULT_THREADS, fuse
from .coalesce_loops import one_loop_each
from .coalesce_reduction_plan import (
    ENOUGH_BLOCKS,
    ENOUGH_THREADS,
    MAX_THREADS,
    Plan,
    batched_load,
    divisor,
    loads_together,
    operand_loads,
    reads_once,
    refs_of,
    still_loading,
    total,
)
from .coalesce_slabs import choose_slabs, cut

__all__ = ["schedule_a_result_each", "schedule_reduction"]

#: Threads of a block that sums rows, vectors of 16 bytes that each of them loads at once, and the
#: most threads of a row. Rows of 4096 halves take 128 threads: hand-written so, 32768 of them take
#: an H200 61.8 us; 32 threads a row took 64.8 us, and a kernel that only reads takes 60.7. Blocks
#: of 128 threads take 63.3 us; only with loads past L1, which TVM does not emit, they are as fast
#: (61.5 us, to 61.4 of 512 threads). See ``benchmarks/results/h200_reductions.json``.
_ROW_THREADS, _VECTORS_EACH, _MOST_LANES = 512, 4, 512


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
    nest, plan = _one_reduced(sch, block, nest, plan, vector_bytes)
    unit = plan.vector if plan.along else 1
    slabs = choose_slabs(plan.load, plan.data, plan.reduced, along=plan.along, unit=unit)
    if slabs == 1 or nest.is_guarded or not plan.is_plain:
        return _one_kernel(sch, block, nest, plan, num_threads)
    (outermost,) = refs_of(sch, block, nest, plan.reduced[:1])
    partial = cut(sch, outermost, slabs, len(plan.data) if plan.along else 0)
    one_loop_each(sch, partial)
    now = read_nest(sch, partial)
    own = Plan.of(now, vector_bytes, plan if plan.is_fused else None)
    text, caches = _one_kernel(sch, partial, now, own, num_threads)
    now = read_nest(sch, block)
    _one_kernel(sch, block, now, Plan.of(now, vector_bytes), num_threads)
    # The second kernel reads next to nothing; counting it an iteration would give it half a say.
    return f"{text}, in {slabs} slabs that a second kernel adds up", caches[:1]


def _one_reduced(
    sch: Any, block: Any, nest: Nest, plan: Plan, vector_bytes: int
) -> tuple[Nest, Plan]:
    """Make one loop, and one iterator, of all that a block reduces over, in the load's order.

    Of several TVM bounds no region: where the lanes' part of them ends inside a row of memory, it
    would set registers aside for all rows that a thread may reach. Beside sums along rows loops of
    one iteration go: once a reduction is cut, TVM binds their iterators to no loop.
    """
    units = [nest.position(loop) for loop in plan.data if loop.size == 1 and plan.along]
    known = not nest.is_guarded and all(loop.size is not None for loop in nest.loops)
    is_several = len(plan.reduced) > 1
    known = known and len(nest.loops) == len(nest.block.iter_vars)
    if not (known and (units or (is_several and plan.is_inside and reads_once(nest)))):
        return nest, plan
    places = [nest.position(loop) for loop in plan.reduced]
    sizes = [loop.size or 1 for loop in plan.reduced]

    def index_map(*iters: Any) -> list[Any]:
        fused: Any = 0
        for place, size in zip(places, sizes, strict=True):
            fused = fused * size + iters[place]
        return [*(it for i, it in enumerate(iters) if i not in [*places, *units]), fused]

    try:
        _transform(sch, block, index_map)
    except RuntimeError:
        return nest, plan
    nest = read_nest(sch, block)
    return nest, Plan.of(nest, vector_bytes, plan if is_several else None)


def schedule_a_result_each(
    sch: Any, block: Any, nest: Nest, num_threads: int | None, vector_bytes: int
) -> tuple[str, list[Any]]:
    """Let each thread sum a result by itself, as a reduction is counted before it is mapped.

    So no load moves more sectors than before, however short or ragged rows and columns are.
    Neighbouring lanes take neighbours of the loops as they stand: a product's main load, which does
    not know its columns, would have them go down its rows.
    """
    data = [loop for loop in nest.loops if not loop.is_reduction]
    if not data:
        raise ScheduleError("there is one result, which one thread alone would sum")
    plan = replace(Plan.of(nest, vector_bytes), data=data, vector=1)
    _, touching = a_column_each(sch, block, nest, plan, num_threads)
    return "reduction, a thread for each result", touching


def _one_kernel(
    sch: Any, block: Any, nest: Nest, plan: Plan, num_threads: int | None
) -> tuple[str, list[Any]]:
    share_out = _along_rows if plan.along else along_columns
    if not plan.along and (plan.data[-1].size is None or not _may_factor(nest, plan)):
        share_out = a_column_each
    return share_out(sch, block, nest, plan, num_threads)


def _may_factor(nest: Nest, plan: Plan) -> bool:
    """Whether partial sums may become an array: ``rfactor`` of TVM 0.27 loses a block's guard.

    Every dim of that array is one loop besides, which it is not once a loop was split.
    """
    dims = len(nest.block.writes[0].source.shape)
    return not nest.is_guarded and len(plan.data) == dims and plan.is_plain


def _along_rows(
    sch: Any, block: Any, nest: Nest, plan: Plan, num_threads: int | None
) -> tuple[str, list[Any]]:
    """Deal a row out to the lanes of a warp, or of more warps where there are few rows."""
    _check_combines(sch, block, nest, plan)
    if plan.places > 1:
        raise ScheduleError(
            f"an iteration reads {plan.load.name} at {plan.places} places, and one copy of its "
            "elements holds those of one"
        )
    rows, groups = total(plan.data), -(-total(plan.reduced) // plan.vector)
    lanes = _row_lanes(rows, groups, num_threads or MAX_THREADS)
    if len(plan.reduced) > 1 or plan.is_fused:
        lanes = divisor(groups, lanes)
    rows_at_once = max(1, (num_threads or _row_threads(rows * lanes)) // lanes)
    if rows == 1 and num_threads is None:
        # A loop of one iteration has no guard: all rows of threads would load the one there is.
        rows_at_once = 1
    batched = plan.is_plain and plan.is_inside and not plan.has_factors
    batched = batched and _shares_out(nest, plan, lanes)
    split = _split_iterators if batched or plan.is_fused else _split_loops
    outer, (steps, step, lane, part) = split(sch, block, nest, plan, lanes)
    row = fuse(sch, outer) if outer else sch.add_unit_loop(steps)
    grid, row = sch.split(row, [None, rows_at_once])
    # TVM wants the loops of a sum innermost, and takes one of one iteration for none of them.
    is_bare = plan.is_fused and plan.vector == 1 and sch.get(step).same_as(sch.get(steps))
    sch.reorder(*dict.fromkeys((grid, row, *[part] * is_bare, lane, steps, step, part)))
    sch.bind(grid, "blockIdx.x")
    sch.bind(row, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    if is_bare:
        caches = [block]
    elif plan.is_fused:
        caches = _each_operand(sch, block, steps, step, plan)
    elif batched:
        caches = still_loading(sch, [batched_load(sch, block, steps, step, plan)], block)
    else:
        sch.unroll(step)
        caches = operand_loads(sch, block, step, plan)
    sch.unroll(part)
    text = f"reduction along the rows, {rows_at_once} rows of {lanes} lanes, vectors of "
    return f"{text}{plan.vector}", caches


def _transform(sch: Any, block: Any, index_map: Any) -> None:
    """Give a block other iterators, of the type of those it has."""
    axes = sch.get(block).iter_vars
    dtype = "int64" if any(str(axis.var.ty) == "int64" for axis in axes) else "int32"
    mapped = tirx.IndexMap.from_func(index_map, ndim=len(axes), index_dtype=dtype)
    sch.transform_block_layout(block, mapped)


def _each_operand(sch: Any, block: Any, steps: Any, step: Any, plan: Plan) -> list[Any]:
    """Load what each operand has for some steps by the block's iterators."""
    stmt = sch.get(block)
    own = [region.source for region in stmt.writes]
    names = [r.source.name for r in stmt.reads if not any(r.source.same_as(b) for b in own)]
    caches = []
    for name in names:
        at = next(i for i, r in enumerate(sch.get(block).reads) if r.source.name == name)
        caches.append(batched_load(sch, block, steps, step, plan, at))
    return caches


def _check_combines(sch: Any, block: Any, nest: Nest, plan: Plan) -> None:
    """Refuse to let threads combine results by a body that TVM does not know for a reducer's.

    Its LowerCrossThreadReduction knows what its rfactor knows: of several results, those of
    ``topi`` and their like; of one, no ``let`` statement, and no start but the combiner's identity
    (a sum from 0, not from 1; a maximum from the least number of its type).
    """
    trial = sch.copy()
    try:
        trial.rfactor(refs_of(trial, block, nest, plan.reduced[:1])[0], 0)
    except RuntimeError as error:
        if "No matched reducer" in str(error) or "RFactor cannot be applied" in str(error):
            raise ScheduleError(
                f"TVM knows no reducer in the body of {nest.block.name_hint}, by which threads "
                "could combine what they found; a thread alone needs none"
            ) from error


def _row_lanes(rows: int, groups: int, most: int) -> int:
    """Threads of a row of so many vectors: up to 4 vectors each, fewer where rows are few."""
    lanes = WARP_SIZE
    while lanes < min(most, _MOST_LANES) and lanes * 2 * _VECTORS_EACH <= groups:
        lanes *= 2
    while lanes < most and rows * lanes < ENOUGH_THREADS and lanes < groups:
        lanes *= 2
    return lanes


def _shares_out(nest: Nest, plan: Plan, lanes: int) -> bool:
    """Whether a thread has loads to batch, and vectors share a row out without a rest.

    The loops must be the block's iterators, as they are before anything is split.
    """
    # TVM takes the variable of a loop of one iteration out of the block's iterators.
    if len(plan.reduced) > 1 or any(loop.size in (None, 1) for loop in nest.loops):
        return False
    steps, rest = divmod(total(plan.reduced), lanes * plan.vector)
    bound = len(nest.loops) == len(nest.block.iter_vars) and not nest.is_guarded
    return bound and not rest and loads_together(steps) > 1


def _split_loops(
    sch: Any, block: Any, nest: Nest, plan: Plan, lanes: int
) -> tuple[list[Any], list[Any]]:
    """Split the loops along a row into steps, unrolled ones, lanes and vectors."""
    outer, inner = (refs_of(sch, block, nest, loops) for loops in (plan.data, plan.reduced))
    sch.reorder(*outer, *inner)
    step, lane, part = sch.split(fuse(sch, inner), [None, lanes, plan.vector])
    together = loads_together(stand_in(sch.get(step).extent))
    return outer, [*sch.split(step, [None, together]), lane, part]


def _split_iterators(
    sch: Any, block: Any, nest: Nest, plan: Plan, lanes: int
) -> tuple[list[Any], list[Any]]:
    """Do the same to the block's iterator along a row, so that loads can go before the sums.

    Where there is one step, the loop over the lanes is its loop: TVM's LowerCrossThreadReduction
    takes no loop of one iteration between those of a reduction. So it is where steps are a prime.
    """
    steps = total(plan.reduced) // (lanes * plan.vector)
    together = loads_together(steps)
    serial = [steps // together] * (steps > together) + [together] * (together > 1)
    sizes = [*serial, lanes, plan.vector]
    at = next(i for i, loop in enumerate(nest.loops) if loop is plan.reduced[0])

    def index_map(*iters: Any) -> list[Any]:
        parts = [iters[at] // prod(sizes[i + 1 :]) % sizes[i] for i in range(len(sizes))]
        return [*iters[:at], *parts, *iters[at + 1 :]]

    _transform(sch, block, index_map)
    loops = sch.get_loops(block)
    parts = loops[at : at + len(sizes)]
    data = [loop for i, loop in enumerate(loops) if not at <= i < at + len(sizes)]
    places = {id(loop): i - (i > at) for i, loop in enumerate(nest.loops)}
    lane = parts[-2]
    steps_loop = parts[0] if steps > together else lane
    step = parts[-3] if together > 1 else steps_loop
    outer = [data[places[id(loop)]] for loop in plan.data]
    if len(outer) > 1:
        sch.reorder(*outer)
    return outer, [steps_loop, step, lane, parts[-1]]


def _row_threads(threads: int) -> int:
    """Threads of a block, of so many in all: fewer where that makes more multiprocessors busy."""
    return _ROW_THREADS if threads >= _ROW_THREADS * ENOUGH_BLOCKS else DEFAULT_THREADS
