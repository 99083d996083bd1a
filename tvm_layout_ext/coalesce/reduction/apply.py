"""Share out a reduction so that its loads are full and wide.

Where the load runs along the reduction (row sums), neighbouring lanes take neighbouring elements of
a row and add up their sums at the end. Where it runs along the result (column sums), lanes lie
along the columns and the rows are dealt out to the warps. Where that leaves multiprocessors idle,
the reduction is first cut into slabs (:mod:`.slabs`), and a second kernel adds these up.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from tvm import tirx

from ...analysis.nest import Nest, read_nest
from ...errors import ScheduleError
from ...gpu.hardware import WARP_SIZE
from ...ir.evaluate import placeholder_extent
from ...ir.queries import is_number
from ..canonical import is_linearized, is_straight, one_loop_each, transform_iterators
from ..emit import DEFAULT_THREADS, fuse
from .columns import reduce_across_rows, thread_per_output
from .plan import (
    ENOUGH_BLOCKS,
    ENOUGH_THREADS,
    MAX_THREADS,
    ReductionPlan,
    batched_load,
    divisor,
    loads_together,
    operand_loads,
    reads_once,
    refs_of,
    still_loading,
    total,
)
from .slabs import choose_slabs, pad_reduction, split_reduction

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
    _check_guard(sch, block, nest)
    nest, plan = _one_reduced(sch, block, nest, ReductionPlan.of(nest, vector_bytes), vector_bytes)
    slabs = 1
    if plan.is_plain and not nest.is_guarded:
        nest, plan, slabs = _slabs(sch, block, nest, plan, vector_bytes)
    if slabs == 1:
        return _one_kernel(sch, block, nest, plan, num_threads)
    (outermost,) = refs_of(sch, block, nest, plan.reduced[:1])
    partial = split_reduction(sch, outermost, slabs, len(plan.data) if plan.along else 0)
    one_loop_each(sch, partial)
    now = read_nest(sch, partial)
    own = ReductionPlan.of(now, vector_bytes, plan if plan.is_fused else None)
    text, caches = _one_kernel(sch, partial, now, own, num_threads)
    now = read_nest(sch, block)
    _one_kernel(sch, block, now, ReductionPlan.of(now, vector_bytes), num_threads)
    # The second kernel reads next to nothing; counting it an iteration would give it half a say.
    return f"{text}, in {slabs} slabs that a second kernel adds up", caches[:1]


def _slabs(
    sch: Any, block: Any, nest: Nest, plan: ReductionPlan, vector_bytes: int
) -> tuple[Nest, ReductionPlan, int]:
    """Choose slabs that divide a reduction, which runs on over zeros where few would."""
    most = choose_slabs(plan.load, plan.data, plan.reduced, along=plan.along)
    slabs = _dividing(plan, most)
    is_few = 2 * slabs < most and len(plan.reduced) == 1 and is_straight(sch, block)
    multiple = most * WARP_SIZE
    if is_few and pad_reduction(sch, block, nest.position(plan.reduced[0]), multiple):
        nest = read_nest(sch, block)
        plan = ReductionPlan.of(nest, vector_bytes)
        slabs = _dividing(plan, most)
    return nest, plan, slabs


def _dividing(plan: ReductionPlan, most: int) -> int:
    extent = plan.reduced[0].size or 1
    unit = plan.vector if plan.along else 1
    return next((d for d in range(most, 0, -1) if extent % (d * unit) == 0), 1)


def _check_guard(sch: Any, block: Any, nest: Nest) -> None:
    """Refuse a guard over fused loops, which TVM 0.27 loses where results leave their registers."""
    fused = is_linearized(sch, block, nest)
    if nest.is_guarded and fused is not None:
        raise ScheduleError(
            f"loop {fused} stands behind several iterators of {nest.block.name_hint}, which runs "
            f"only where {nest.predicate} holds; split no fused loop by what does not divide it"
        )


def _one_reduced(
    sch: Any, block: Any, nest: Nest, plan: ReductionPlan, vector_bytes: int
) -> tuple[Nest, ReductionPlan]:
    """Make one loop, and one iterator, of all that a block sums; drop axes of extent 1.

    TVM takes an axis of extent 1 for no loop. Of several iterators it bounds no region: where the
    lanes' part of them ends inside a row of memory, it would set registers aside for all rows that
    a thread may reach. Column sums keep the axes of their result, which their partial sums have.
    """
    summed = [nest.position(loop) for loop in plan.reduced if loop.size != 1]
    units = [loop.size == 1 and (loop.is_reduction or plan.along) for loop in nest.loops]
    known = all(loop.size is not None for loop in nest.loops)
    fuses = known and len(summed) > 1 and plan.is_inside and reads_once(nest)
    if nest.is_guarded or not (summed and (fuses or any(units)) and is_straight(sch, block)):
        return nest, plan
    gone = [place for place, unit in enumerate(units) if unit or (fuses and place in summed)]

    def index_map(*iters: Any) -> list[Any]:
        fused: Any = 0
        for place in summed:
            fused = fused * nest.loops[place].size + iters[place]
        return [*(it for i, it in enumerate(iters) if i not in gone), *[fused] * fuses]

    try:
        transform_iterators(sch, block, index_map)
    except RuntimeError:
        return nest, plan
    nest = read_nest(sch, block)
    return nest, ReductionPlan.of(nest, vector_bytes, plan if fuses else None)


def schedule_thread_per_output(
    sch: Any, block: Any, nest: Nest, num_threads: int | None, vector_bytes: int
) -> tuple[str, list[Any]]:
    """Let each thread sum a result by itself, as a reduction is counted before it is mapped.

    So no load moves more sectors than before, however short or ragged rows and columns are.
    Neighbouring lanes take neighbours of the loops as they stand: a product's main load, which does
    not know its columns, would have them go down its rows.
    """
    _check_guard(sch, block, nest)
    data = [loop for loop in nest.loops if not loop.is_reduction]
    if not data:
        raise ScheduleError("there is one result, which one thread alone would sum")
    plan = replace(ReductionPlan.of(nest, vector_bytes), data=data, vector=1)
    _, touching = thread_per_output(sch, block, nest, plan, num_threads)
    return "reduction, a thread for each result", touching


def _one_kernel(
    sch: Any, block: Any, nest: Nest, plan: ReductionPlan, num_threads: int | None
) -> tuple[str, list[Any]]:
    share_out = _along_rows if plan.along else reduce_across_rows
    if not plan.along and (plan.data[-1].size is None or not _may_factor(nest, plan)):
        share_out = thread_per_output
    return share_out(sch, block, nest, plan, num_threads)


def _may_factor(nest: Nest, plan: ReductionPlan) -> bool:
    """Whether partial sums may become an array: ``rfactor`` of TVM 0.27 loses a block's guard.

    Every dim of that array is one loop besides, which it is not once a loop was split, and an axis
    of extent 1 is none of the reduction's iterators.
    """
    dims = len(nest.block.writes[0].source.shape)
    sums = [axis for axis in nest.block.iter_vars if axis.iter_type == tirx.IterVar.CommReduce]
    is_one = len(sums) == 1 or not any(is_number(axis.dom.extent, 1) for axis in sums)
    return not nest.is_guarded and len(plan.data) == dims and plan.is_plain and is_one


def _along_rows(
    sch: Any, block: Any, nest: Nest, plan: ReductionPlan, num_threads: int | None
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
    if plan.is_fused or len(plan.reduced) > 1:
        lanes = divisor(groups, lanes)
    rows_at_once = max(1, (num_threads or _row_threads(rows * lanes)) // lanes)
    if rows == 1 and num_threads is None:
        # A loop of one iteration has no guard: all rows of threads would load the one there is.
        rows_at_once = 1
    batched = plan.is_plain and plan.is_inside and not plan.has_factors
    batched = batched and is_straight(sch, block) and _shares_out(nest, plan, lanes)
    split = _split_iterators if batched or plan.is_fused else _split_loops
    outer, (steps, step, lane, part) = split(sch, block, nest, plan, lanes)
    row = fuse(sch, outer) if outer else sch.add_unit_loop(steps)
    grid, row = sch.split(row, [None, rows_at_once])
    sch.reorder(*dict.fromkeys((grid, row, lane, steps, step, part)))
    sch.bind(grid, "blockIdx.x")
    sch.bind(row, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    if plan.is_fused and plan.vector == 1 and step is steps:
        # One element a thread at a time needs no copy.
        caches = [block]
    elif plan.is_fused:
        caches = _each_operand(sch, block, steps, step, plan)
    elif batched:
        caches = still_loading(sch, [batched_load(sch, block, steps, step, plan)], block)
    else:
        sch.unroll(step)
        caches = operand_loads(sch, block, step, plan)
    if part is not lane:
        sch.unroll(part)
    text = f"reduction along the rows, {rows_at_once} rows of {lanes} lanes, vectors of "
    return f"{text}{plan.vector}", caches


def _each_operand(sch: Any, block: Any, steps: Any, step: Any, plan: ReductionPlan) -> list[Any]:
    """Load what each operand has for some steps by the block's iterators."""
    stmt = sch.get(block)
    own = [region.source for region in stmt.writes]
    names = [r.source.name for r in stmt.reads if not any(r.source.same_as(b) for b in own)]
    caches = []
    for name in names:
        at = next(i for i, r in enumerate(sch.get(block).reads) if r.source.name == name)
        caches.append(batched_load(sch, block, steps, step, plan, at))
    return caches


def _check_combines(sch: Any, block: Any, nest: Nest, plan: ReductionPlan) -> None:
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


def _shares_out(nest: Nest, plan: ReductionPlan, lanes: int) -> bool:
    """Whether a thread has loads to batch, and vectors share a row out without a rest.

    The loops are the block's iterators, as they are before anything is split.
    """
    # TVM takes the variable of a loop of one iteration out of the block's iterators.
    if len(plan.reduced) > 1 or any(loop.size in (None, 1) for loop in nest.loops):
        return False
    steps, rest = divmod(total(plan.reduced), lanes * plan.vector)
    return not nest.is_guarded and not rest and loads_together(steps) > 1


def _split_loops(
    sch: Any, block: Any, nest: Nest, plan: ReductionPlan, lanes: int
) -> tuple[list[Any], list[Any]]:
    """Split the loops along a row into steps, unrolled ones, lanes and vectors."""
    outer, inner = (refs_of(sch, block, nest, loops) for loops in (plan.data, plan.reduced))
    sch.reorder(*outer, *inner)
    step, lane, part = sch.split(fuse(sch, inner), [None, lanes, plan.vector])
    together = loads_together(placeholder_extent(sch.get(step).extent))
    return outer, [*sch.split(step, [None, together]), lane, part]


def _split_iterators(
    sch: Any, block: Any, nest: Nest, plan: ReductionPlan, lanes: int
) -> tuple[list[Any], list[Any]]:
    """Do the same to the block's iterator along a row, so that loads can go before the sums.

    Where there is one step, the loop over the lanes is its loop, and so it is that of a vector of
    one element: TVM's LowerCrossThreadReduction takes no loop of one iteration between, or inside
    of, those of a reduction.
    """
    steps = total(plan.reduced) // (lanes * plan.vector)
    together = loads_together(steps)
    serial = [steps // together] * (steps > together) + [together] * (together > 1)
    sizes = [*serial, lanes, *[plan.vector] * (plan.vector > 1)]
    at = next(i for i, loop in enumerate(nest.loops) if loop is plan.reduced[0])

    def index_map(*iters: Any) -> list[Any]:
        parts = [iters[at] // prod(sizes[i + 1 :]) % sizes[i] for i in range(len(sizes))]
        return [*iters[:at], *parts, *iters[at + 1 :]]

    transform_iterators(sch, block, index_map)
    loops = sch.get_loops(block)
    parts = loops[at : at + len(sizes)]
    data = [loop for i, loop in enumerate(loops) if not at <= i < at + len(sizes)]
    places = {id(loop): i - (i > at) for i, loop in enumerate(nest.loops)}
    lane = parts[len(serial)]
    steps_loop = parts[0] if steps > together else lane
    step = parts[len(serial) - 1] if together > 1 else steps_loop
    outer = [data[places[id(loop)]] for loop in plan.data]
    if len(outer) > 1:
        sch.reorder(*outer)
    return outer, [steps_loop, step, lane, parts[-1]]


def _row_threads(threads: int) -> int:
    """Threads of a block, of so many in all: fewer where that makes more multiprocessors busy."""
    return _ROW_THREADS if threads >= _ROW_THREADS * ENOUGH_BLOCKS else DEFAULT_THREADS
