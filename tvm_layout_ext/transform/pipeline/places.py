"""Copies that fill other places of their buffer in each iteration, whatever their region says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from ...errors import ScheduleError
from ...ir.evaluate import known_value
from ...ir.queries import depends_on, loads_in
from ...ir.walk import walk
from .parts import Part, Region
from .plan import PipelinePlan

__all__ = ["check_places"]

#: Iterations that are tried, and points of all of them: indices repeat much sooner.
_ITERATIONS, _POINTS = 64, 1 << 20


def check_places(plan: PipelinePlan, loop: Any, threads: Mapping[Any, Any]) -> None:
    """Refuse a copy to moving places of which others are read than it filled.

    A region may hold more than what is written: TVM says the whole buffer of ``S[I[k], t]``, and
    of ``S[(k * 16 + t) % 32]`` whatever the number of threads. Indices without loads are tried
    with the first 64 iterations; those with loads must be the same where the buffer is read.

    Parameters
    ----------
    plan : Plan
        The pipeline.
    loop : For
        Its loop.
    threads : dict of Var to Range
        The thread axes around it.

    Raises
    ------
    ScheduleError
        Naming block, buffer, loop and reader.
    """
    for i in plan.early:
        part = plan.parts[i]
        for written in part.writes:
            stores = list(_stores(part.stmt, written.buffer, dict(threads)))
            for store, ranges, conditions in stores:
                moving = [d for d, e in enumerate(store.indices) if _moves(e, loop.loop_var)]
                for j in plan.readers(i) if moving else ():
                    reader = plan.parts[j]
                    if _same_place(store, moving, ranges, reader):
                        continue
                    reads = reader.reads_of(written.buffer)
                    alone = len(stores) == 1
                    if not (alone and _fills(store, ranges, conditions, loop, reads)):
                        raise _refusal(part, written.buffer, loop, reader)


def _refusal(part: Part, buffer: Any, loop: Any, reader: Part) -> ScheduleError:
    return ScheduleError(
        f"Block {part.name} fills other elements of {buffer.name} in each iteration of loop "
        f"{loop.loop_var.name}, and {reader.place} may read more than these, which an iteration "
        "before copied into another version; copy all that an iteration reads, or read at the "
        "index that is written."
    )


def _stores(
    stmt: Any, buffer: Any, threads: dict[Any, Any]
) -> Iterator[tuple[Any, dict[Any, Any], tuple[Any, ...]]]:
    """Stores to a buffer, with the ranges and conditions around each."""
    for node, around in walk(stmt):
        if isinstance(node, tirx.BufferStore) and node.buffer.same_as(buffer):
            own = {
                loop.var: tvm.ir.Range.from_min_extent(loop.start, loop.extent)
                for loop in around.loops
            }
            yield node, {**threads, **own}, around.conditions


def _moves(index: Any, var: Any) -> bool:
    return bool(loads_in(index)) or depends_on(index, var)


def _same_place(store: Any, moving: Sequence[int], ranges: Mapping[Any, Any], reader: Part) -> bool:
    """Whether a statement reads at the very index that is written, the same for all threads."""
    for d in moving:
        used = tirx.analysis.undefined_vars(store.indices[d])
        if any(v.same_as(inner) for v in used for inner in ranges):
            return False
    own = [load for load in loads_in(reader.stmt) if load.source.same_as(store.buffer)]
    return bool(own) and all(
        tvm_ffi.structural_equal(load.indices[d], store.indices[d]) for load in own for d in moving
    )


def _fills(
    store: Any,
    ranges: Mapping[Any, Any],
    conditions: Sequence[Any],
    loop: Any,
    reads: Sequence[Region],
) -> bool:
    """Whether all that is read was written, in each of the first iterations."""
    used = [v for e in (*store.indices, *conditions) for v in tirx.analysis.undefined_vars(e)]
    inner = {v: r for v, r in ranges.items() if any(v.same_as(one) for one in used)}
    numbers = [r.extent for r in inner.values()] + list(store.buffer.shape)
    if not all(isinstance(n, int | tirx.IntImm) for n in (*numbers, loop.min)):
        return False
    shape = [int(extent) for extent in store.buffer.shape]
    sizes = [int(r.extent) for r in inner.values()]
    most = min(_ITERATIONS, _POINTS // max(1, prod(sizes)))
    trips = int(loop.extent) if isinstance(loop.extent, tirx.IntImm) else most
    values = dict(zip(inner, np.indices(sizes), strict=True))
    for k in range(int(loop.min), int(loop.min) + min(trips, most)):
        values[loop.loop_var] = k
        places = [_value(e, values) for e in store.indices]
        holds = [_value(e, values) for e in conditions]
        if any(one is None for one in (*places, *holds)):
            return False
        where = np.logical_and.reduce([np.broadcast_to(h, sizes) for h in (True, *holds)])
        filled = np.zeros(shape, bool)
        filled[tuple(np.broadcast_to(p, sizes)[where] for p in places)] = True
        if not all(filled[_box(read, values, shape)].all() for read in reads):
            return False
    return most > 0


def _box(read: Region, values: Mapping[Any, Any], shape: Sequence[int]) -> tuple[slice, ...]:
    """What is read, or the whole buffer."""
    whole = tuple(slice(0, extent) for extent in shape)
    ends = [[_value(end, values) for end in pair] for pair in read.bounds or ()]
    if not ends or any(end is None or np.ndim(end) for pair in ends for end in pair):
        return whole
    return tuple(slice(int(low), int(high) + 1) for low, high in ends)


def _value(expr: Any, values: Mapping[Any, Any]) -> Any:
    """An expression of known variables, for all their values; None if it has others, or loads."""
    free = [] if isinstance(expr, int) else tirx.analysis.undefined_vars(expr)
    return known_value(expr, values) if all(var in values for var in free) else None
