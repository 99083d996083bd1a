"""Share out a reduction whose load runs along it (row sums): lanes lie along the rows."""

from __future__ import annotations

from math import prod
from typing import Any

from ...analysis.nest import Nest
from ...errors import ScheduleError
from ...gpu.hardware import WARP_SIZE
from ...ir.evaluate import placeholder_extent
from ..canonical import is_straight, transform_iterators
from ..emit import DEFAULT_THREADS, fuse
from .plan import (
    ENOUGH_BLOCKS,
    ENOUGH_THREADS,
    MAX_THREADS,
    ReductionPlan,
    batched_load,
    divisor,
    loads_together,
    operand_loads,
    refs_of,
    total,
)

#: Threads of a block that sums rows, vectors of 16 bytes that each of them loads at once, and the
#: most threads of a row. Rows of 4096 halves take 128 threads: hand-written so, 32768 of them take
#: an H200 61.8 us; 32 threads a row took 64.8 us, and a kernel that only reads takes 60.7. Blocks
#: of 128 threads take 63.3 us; only with loads past L1, which TVM does not emit, they are as fast
#: (61.5 us, to 61.4 of 512 threads). See ``benchmarks/results/h200_reductions.json``.
_ROW_THREADS, _VECTORS_EACH, _MOST_LANES = 512, 4, 512


def reduce_along_rows(
    sch: Any, block: Any, nest: Nest, plan: ReductionPlan, num_threads: int | None
) -> str:
    """Deal a row out to the lanes of a warp, or of more warps where there are few rows."""
    _check_combines(sch, block, nest, plan)
    if plan.places > 1:
        raise ScheduleError(
            f"an iteration reads {plan.load.name} at {plan.places} places, and one copy of its "
            "elements holds those of one"
        )
    if len(plan.reduced) > 1 and any(loop.size is None for loop in plan.reduced):
        # TVM's LowerCrossThreadReduction would leave the block as it is: a race.
        raise ScheduleError(
            f"{nest.block.name_hint} sums several axes, one but the slowest of symbolic length, "
            "which threads cannot share out as one"
        )
    rows, groups = total(plan.data), -(-total(plan.reduced) // plan.vector)
    lanes = row_lanes(rows, groups, num_threads or MAX_THREADS)
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
        pass  # One element a thread at a time needs no copy.
    elif plan.is_fused:
        _each_operand(sch, block, steps, step, plan)
    elif batched:
        batched_load(sch, block, steps, step, plan)
    else:
        sch.unroll(step)
        operand_loads(sch, block, step, plan)
    if part is not lane:
        sch.unroll(part)
    text = f"reduction along the rows, {rows_at_once} rows of {lanes} lanes, vectors of "
    return f"{text}{plan.vector}"


def _each_operand(sch: Any, block: Any, steps: Any, step: Any, plan: ReductionPlan) -> None:
    """Load what each operand has for some steps by the block's iterators."""
    stmt = sch.get(block)
    own = [region.source for region in stmt.writes]
    names = [r.source.name for r in stmt.reads if not any(r.source.same_as(b) for b in own)]
    for name in names:
        at = next(i for i, r in enumerate(sch.get(block).reads) if r.source.name == name)
        batched_load(sch, block, steps, step, plan, at)


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


def row_lanes(rows: int, groups: int, most: int) -> int:
    """Threads of a row of so many vectors: up to 4 vectors each, fewer where rows are few."""
    lanes = WARP_SIZE
    while lanes // 2 >= groups:
        lanes //= 2
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
