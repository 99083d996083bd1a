"""What a reduction's loops mean to its main load, and steps that all ways to share it out take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.tirx import IntImm

from ...analysis.nest import Access, Loop, Nest, read_nest
from ...errors import ScheduleError
from ...gpu.hardware import MAX_ACCESS_BYTES, MULTIPROCESSORS
from ...ir.evaluate import placeholder_extent
from ...ir.queries import loads_in
from ..canonical import is_linearized, is_straight, transform_iterators
from ..guarded_loads import chosen_by_index, guarded_outside
from ..mapping import merged_run, own_order

MAX_THREADS = 1024
#: Threads that keep a large GPU busy.
ENOUGH_THREADS = MULTIPROCESSORS * MAX_THREADS
#: Blocks that keep it busy, if each has many threads.
ENOUGH_BLOCKS = 128
#: Loads of a thread that are on their way together.
_IN_FLIGHT = 8
#: Results of all kinds that a thread keeps in registers for the elements of a vector.
_ELEMENTS = 16


@dataclass(frozen=True)
class ReductionPlan:
    """What the main load of a reduction makes of its loops."""

    load: Access  #: The load with the most loops
    data: list[Loop]  #: In the load's own order, as those that are reduced
    reduced: list[Loop]
    along: bool  #: Whether the load runs along the reduction
    vector: int  #: Neighbours that a thread loads at once
    results: int = 1  #: Buffers that the reduction writes
    is_plain: bool = True  #: Whether its body is one store, as TVM's rfactor wants it of one result
    #: Whether such a body loads several buffers, as a matrix times a vector.
    has_factors: bool = False
    places: int = 1  #: At how many an iteration reads the buffer of the main load
    #: Whether loads stay in their buffers also where a choice does not take them.
    is_inside: bool = True
    #: Whether the one loop of the reduction was several, whose vectors no region of TVM's bounds.
    is_fused: bool = False
    #: Iterations of the results' loop around the innermost, if the load goes on from one to the
    #: next; 0 if not.
    near: int = 0

    @classmethod
    def of(cls, nest: Nest, vector_bytes: int, fused: ReductionPlan | None = None) -> ReductionPlan:
        """Plan a nest whose widest load of a thread has so many bytes.

        ``fused`` is the plan of its loops before those of the reduction became one.
        """
        load = _main_load(nest)
        data = [loop for loop in own_order(load, nest, nest.loops) if not loop.is_reduction]
        reduced = [loop for loop in own_order(load, nest, nest.loops) if loop.is_reduction]
        inner = max(
            (group for group in (data, reduced) if group),
            key=lambda group: group[-1].size != 1 and _walks(nest, load, group[-1]) > 1,
        )
        if fused is not None:
            inner = reduced if fused.along else data
        results = len(nest.block.writes)
        is_plain = isinstance(nest.block.body, tirx.BufferStore)
        has_factors = is_plain and len({access.name for access in _operands(nest)}) > 1
        along, vector = inner is reduced, 1
        if _walks(nest, load, inner[-1]) > 1:
            run = merged_run([load], nest.loops, inner)
            vector = min(
                min(
                    one.vector(inner[len(inner) - run :], vector_bytes),
                    _walks(nest, one, inner[-1]),
                )
                for one in (
                    _main_loads(nest, inner[-1])
                    if not is_plain or (along and has_factors)
                    else [load]
                )
            )
            vector = min(vector, max(1, _ELEMENTS // results))
            while vector > 1 and placeholder_extent(inner[-1].extent) % vector:
                vector //= 2
        return cls(
            load,
            data,
            reduced,
            along,
            vector,
            results,
            is_plain,
            has_factors,
            _places(nest, load),
            not guarded_outside(nest),
            fused is not None,
            data[-2].size or 0 if merged_run([load], nest.loops, data) > 1 else 0,
        )


def _operands(nest: Nest) -> list[Access]:
    stores = {access.name for access in nest.accesses if access.kind == "store"}
    return [a for a in nest.global_loads() if a.name not in stores]


def _places(nest: Nest, load: Access) -> int:
    """At how many different places an iteration reads a load's buffer."""
    found: list[Any] = []
    for one in _operands(nest):
        known = any(tvm_ffi.structural_equal(one.offset, other) for other in found)
        if one.name == load.name and not known:
            found.append(one.offset)
    return len(found)


def reads_once(nest: Nest) -> bool:
    """Whether an iteration reads each operand at one place, which no loaded value tells."""
    operands = _operands(nest)
    names = {access.name for access in operands}
    return len(names) == len(operands) and not any(loads_in(one.offset) for one in operands)


def _main_loads(nest: Nest, loop: Loop) -> list[Access]:
    """Loads that run along a loop, which a reduction to several results takes in vectors alike."""
    return [access for access in _operands(nest) if _walks(nest, access, loop) > 1]


def _main_load(nest: Nest) -> Access:
    loads = _operands(nest)
    if not loads:
        raise ScheduleError(
            f"Reduction block {nest.block.name_hint} loads nothing from global memory."
        )

    def moving(load: Access) -> int:
        return sum(step is None or placeholder_extent(step) != 0 for step in load.steps)

    return max(loads, key=moving)


def _walks(nest: Nest, access: Access, loop: Loop) -> int:
    """Neighbours along a loop that a load takes one by one, a power of two where not all."""
    step = nest.step(access, loop)
    if step is None:
        return nest.groups(access, loop)[0]
    # A symbolic one, as of the rows of a[j, k], is not 1.
    return MAX_ACCESS_BYTES if isinstance(step, int | IntImm) and int(step) == 1 else 1


def total(loops: Sequence[Loop]) -> int:
    """Iterations of some loops; a symbolic extent counts as 1021."""
    return prod(placeholder_extent(loop.extent) for loop in loops)


def refs_of(sch: Any, block: Any, nest: Nest, loops: Sequence[Loop]) -> list[Any]:
    """Find the random variables of some loops of a nest."""
    refs = sch.get_loops(block)
    return [refs[nest.position(loop)] for loop in loops]


def inside(sch: Any, block: Any, loop: Any) -> list[Any]:
    """Loops of a block inside another loop."""
    loops = sch.get_loops(block)
    outer = sch.get(loop)
    return loops[1 + next(i for i, own in enumerate(loops) if sch.get(own).same_as(outer)) :]


def divisor(number: int, most: int) -> int:
    """Largest divisor up to a bound."""
    return next(d for d in range(min(number, most), 0, -1) if number % d == 0)


def loads_together(steps: int) -> int:
    """Loads of a thread that are on their way together, of so many in all; a divisor of these."""
    return divisor(steps, _IN_FLIGHT)


def keep_in_flight(sch: Any, step: Any) -> Any:
    """Unroll some steps of a serial loop, so that their loads may be on their way together."""
    _, inner = sch.split(step, [None, loads_together(placeholder_extent(sch.get(step).extent))])
    sch.unroll(inner)
    return inner


def vector_load(sch: Any, partial: Any, step: Any, vector: int) -> None:
    """Load into registers first, as a vector."""
    # Other readers of the buffer stay as they are: their loads are none of this kernel's.
    cache = sch.cache_read(partial, _load_index(sch, partial), "local", [partial])
    sch.compute_at(cache, step, preserve_unit_loops=True)
    _fill(sch, cache, step, vector > 1)


def _fill(sch: Any, cache: Any, step: Any, is_vector: bool) -> None:
    """Unroll the loops of a copy in registers, the last as a vector."""
    *outer, last = inside(sch, cache, step)
    for loop in outer:
        if isinstance(sch.get(loop).extent, IntImm):
            sch.unroll(loop)
    if is_vector:
        sch.vectorize(last)


def operand_loads(
    sch: Any, partial: Any, step: Any, plan: ReductionPlan, *, moving: bool = False
) -> None:
    """Load what a thread adds into registers first: the main operand, or all operands.

    With ``moving``, what all results share waits for the sum unless it goes in vectors: before it,
    threads without a result would load it, too.
    """
    nest = read_nest(sch, partial)
    # A copy would keep what another iteration read where this one may not.
    chosen = set(guarded_outside(nest))
    if plan.vector == 1:
        chosen |= chosen_by_index(nest.block.body)
    if plan.is_plain and not (plan.has_factors or plan.places > 1 or chosen):
        vector_load(sch, partial, step, plan.vector)
        return
    operands = _operands(nest)
    names = [access.name for access in operands]
    # What is read at two places, or by what was loaded, has no one vector.
    regular = [a for a in operands if not loads_in(a.offset) and names.count(a.name) == 1]
    # A copy would be loaded in each iteration, whatever the choice is.
    regular = [a for a in regular if a.name not in chosen]
    if moving and plan.vector == 1:
        results = [loop for loop in nest.loops if not loop.is_reduction]
        regular = [a for a in regular if any(nest.step(a, loop) != 0 for loop in results)]
    along = _main_loads(nest, nest.loops[-1])
    for access in regular:
        reads = [str(region.source.name) for region in sch.get(partial).reads]
        cache = sch.cache_read(partial, reads.index(access.name), "local", [partial])
        sch.compute_at(cache, step, preserve_unit_loops=True)
        _fill(sch, cache, step, plan.vector > 1 and any(access is one for one in along))


def batched_load(
    sch: Any, partial: Any, steps: Any, step: Any, plan: ReductionPlan, index: int | None = None
) -> None:
    """Load what all iterations of an unrolled loop add before the first of them adds.

    ::

        for o in range(n):                   for o in range(n):
            for u in T.unroll(8):                for u in T.unroll(8):
                r[0:8] = A[...]                      r[u, 0:8] = A[...]
                B[...] += r[...]                 for u in T.unroll(8):
                                                     B[...] += r[u, ...]

    Of loads and sums by turns ptxas 13.0 starts only 3 or 4 loads before the first addition.

    All loads of the sum are inside their buffers. The loop ``step``, in ``steps``, has a block
    iterator of its own, or registers would be set aside for all that lies between two of its
    iterations. ``index`` is that of the operand, by default the largest.
    """
    if not sch.get(step).same_as(sch.get(steps)):
        sch.unroll(step)
    index = _load_index(sch, partial) if index is None else index
    order = _iterators_of(sch.get(partial), index, plan.along)
    iterators = len(sch.get(partial).iter_vars)
    index_map = tirx.IndexMap.from_func(lambda *iters: [iters[i] for i in order], iterators)
    cache = sch.reindex_cache_read(partial, index, "local", index_map)
    sch.compute_at(cache, steps, preserve_unit_loops=True)
    own = dict(zip(sorted(order), inside(sch, cache, steps), strict=True))
    *outer, last = [own[i] for i in order]
    sch.reorder(*outer, last)
    for loop in outer:
        sch.unroll(loop)
    if plan.vector > 1:
        sch.vectorize(last)


def _iterators_of(stmt: Any, index: int, reduced_last: bool) -> list[int]:
    """Block iterators that an operand is read by, those along which it is contiguous last."""
    read: list[Any] = []
    for one in stmt.reads[index].region:
        read += tirx.analysis.undefined_vars(one.min)
    used = [i for i, it in enumerate(stmt.iter_vars) if any(it.var.same_as(v) for v in read)]
    reduces = [it.iter_type == tirx.IterVar.CommReduce for it in stmt.iter_vars]
    return sorted(used, key=lambda i: (reduces[i] == reduced_last, i))


def _load_index(sch: Any, partial: Any) -> int:
    """Of the operands that a partial sum reads, the largest."""
    stmt = sch.get(partial)
    own = stmt.writes[0].source
    sizes = [
        -1
        if region.source.same_as(own)
        else prod(placeholder_extent(n) for n in region.source.shape)
        for region in stmt.reads
    ]
    return sizes.index(max(sizes))


def check_guard(sch: Any, block: Any, nest: Nest) -> None:
    """Refuse a guard over fused loops, which TVM 0.27 loses where results leave their registers."""
    fused = is_linearized(sch, block, nest)
    if nest.is_guarded and fused is not None:
        raise ScheduleError(
            f"loop {fused} stands behind several iterators of {nest.block.name_hint}, which runs "
            f"only where {nest.predicate} holds; split no fused loop by what does not divide it"
        )


def one_reduced(
    sch: Any,
    block: Any,
    nest: Nest,
    plan: ReductionPlan,
    vector_bytes: int,
    *,
    fuses: bool = True,
) -> tuple[Nest, ReductionPlan]:
    """Make one loop, and one iterator, of all that a block sums; drop axes of extent 1.

    TVM takes an axis of extent 1 for no loop. Of several iterators it bounds no region: where the
    lanes' part of them ends inside a row of memory, it would set registers aside for all rows that
    a thread may reach. Column sums keep the axes of their result, which their partial sums have.
    """
    summed = [nest.position(loop) for loop in plan.reduced if loop.size != 1]
    units = [loop.size == 1 and (loop.is_reduction or plan.along) for loop in nest.loops]
    known = all(nest.loops[place].size is not None for place in summed)
    # Of rows the slowest of those that become one may be symbolic.
    fused = known or (
        plan.along and all(nest.loops[place].size is not None for place in summed[1:])
    )
    fuses = fuses and fused and len(summed) > 1 and plan.is_inside and reads_once(nest)
    if nest.is_guarded or not (summed and (fuses or any(units)) and is_straight(sch, block)):
        return nest, plan
    gone = [place for place, unit in enumerate(units) if unit or (fuses and place in summed)]

    def index_map(*iters: Any) -> list[Any]:
        fused: Any = iters[summed[0]]
        for place in summed[1:] if fuses else ():
            fused = fused * nest.loops[place].size + iters[place]
        return [*(it for i, it in enumerate(iters) if i not in gone), *[fused] * fuses]

    try:
        transform_iterators(sch, block, index_map)
    except RuntimeError:
        return nest, plan
    nest = read_nest(sch, block)
    made = ReductionPlan.of(nest, vector_bytes, plan if fuses else None)
    return nest, made if known else replace(made, vector=1, is_fused=False)
