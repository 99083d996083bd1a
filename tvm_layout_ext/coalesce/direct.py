"""Share out a block whose accesses agree: blocks, steps, threads and a vector, in one order."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ..analysis.assumptions import Assumptions, Prover
from ..analysis.nest import Loop, Nest
from ..gpu.hardware import MAX_ACCESS_BYTES, WARP_SIZE
from ..ir.evaluate import placeholder_extent
from .mapping import Mapping

DEFAULT_THREADS = 256
#: Threads of a block whose accesses agree. On an H200 a copy of 16384^2 halves ran at 4.26 TB/s so,
#: 4.24 with 256 and 4.22 with 512; two vectors a thread took it to 4.24, four of 1 GiB from 251.7
#: to 263 us.
_DIRECT_THREADS = 128
#: Bytes that a thread moves where an access is narrower than a full vector, or goes where another
#: load tells it: both wait less for two at once (a gather of rows took 128.8 us, one vector 132).
_THREAD_BYTES = 32
#: Most accesses of a thread that are on their way together, however narrow.
_STEPS = 4
#: Blocks below which more of them matter more than steps a thread.
_MANY_BLOCKS = 512


def in_order(sch: Any, block: Any, nest: Nest, order: Sequence[Loop]) -> list[Any]:
    """Reorder the loops of a block and return their random variables, outermost first."""
    refs = sch.get_loops(block)
    chosen = [refs[nest.position(loop)] for loop in order]
    if len(chosen) > 1:
        sch.reorder(*chosen)
    return chosen


def _outermost(sch: Any, block: Any, nest: Nest, mapping: Mapping) -> list[Any]:
    """Put a mapping's loops in its order, those of a reduction inside of them."""
    sums = [loop for loop in nest.loops if loop.is_reduction and loop.is_perfect]
    return in_order(sch, block, nest, [*mapping.order, *sums])[: len(mapping.order)]


def fuse(sch: Any, loops: Sequence[Any]) -> Any:
    """Fuse loops; a single one stays."""
    return loops[0] if len(loops) == 1 else sch.fuse(*loops)


def split_whole(sch: Any, loop: Any, factors: Sequence[int], assumptions: Assumptions) -> list[Any]:
    """Split a loop, without a guard where the function promises that the factors divide it."""
    extent = sch.get(loop).extent
    whole = bool(assumptions.conditions) and Prover(assumptions.conditions).is_multiple(
        extent, prod(factors)
    )
    return list(sch.split(loop, [None, *factors], disable_predication=whole))


def split_vector(
    sch: Any, loops: Sequence[Any], mapping: Mapping, assumptions: Assumptions
) -> tuple[Any, Any | None]:
    """Fuse loops into one, with the vector split off its contiguous end."""
    run = fuse(sch, loops[len(loops) - mapping.run :])
    outer = list(loops[: len(loops) - mapping.run])
    if mapping.vector == 1:
        return fuse(sch, [*outer, run]), None
    groups, vector = split_whole(sch, run, [mapping.vector], assumptions)
    return fuse(sch, [*outer, groups]), vector


def groups_of(mapping: Mapping) -> int:
    """Vectors in all."""
    run = prod(placeholder_extent(loop.extent) for loop in mapping.inner)
    outer = prod(placeholder_extent(loop.extent) for loop in mapping.order[: -mapping.run])
    return outer * -(-run // mapping.vector)


def threads_for(mapping: Mapping, num_threads: int | None) -> int:
    """Threads of a block: 128 where none are asked for, less where there is not enough to do."""
    enough = WARP_SIZE * max(1, -(-groups_of(mapping) // WARP_SIZE))
    return num_threads or min(_DIRECT_THREADS, enough)


def _steps(nest: Nest, mapping: Mapping) -> int:
    """Accesses that a thread does one after the other, by the widest of them."""
    accesses = nest.of_scope("global")
    widest = mapping.vector * max((access.bytes for access in accesses), default=1)
    if widest >= MAX_ACCESS_BYTES and all(access.is_affine() for access in accesses):
        return 1
    return max(1, min(_STEPS, _THREAD_BYTES // widest))


def schedule_direct(
    sch: Any, block: Any, nest: Nest, mapping: Mapping, num_threads: int | None
) -> None:
    """Bind a whole nest: blockIdx.x, unrolled steps, threadIdx.x, vector.

    ::

        for i in range(4096):                for block in T.thread_binding(16):
            B[i] = A[i]                          for step in T.unroll(...):
                                                     for thread in T.thread_binding(64):
                                                         for v in T.vectorized(4): ...

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
    block : SBlockRV
    nest : Nest
        The block as it is, all its loops free.
    mapping : Mapping
        The order and the vector of its loops; of a reduction, of those along its results.
    num_threads : int, optional
        Threads of a block; by default 128, less where there is not enough to do.
    """
    groups = groups_of(mapping)
    threads = threads_for(mapping, num_threads)
    steps = _steps(nest, mapping)
    while steps > 1 and groups < steps * threads * _MANY_BLOCKS:
        steps //= 2
    loops = _outermost(sch, block, nest, mapping)
    fused, vector = split_vector(sch, loops, mapping, nest.assumptions)
    grid, step, thread = split_whole(sch, fused, [steps, threads], nest.assumptions)
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    sch.unroll(step)
    if vector is not None:
        sch.vectorize(vector)


def schedule_copy(
    sch: Any, block: Any, nest: Nest, mapping: Mapping, threads: dict[str, int]
) -> None:
    """Spread a block inside a kernel over the threads that the kernel has.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
    block : SBlockRV
    nest : Nest
        The block as it is.
    mapping : Mapping
        The order and the vector of its free loops; of a reduction, of those along its results.
    threads : dict of str to int
        Extent of each of the kernel's thread axes.
    """
    loops = _outermost(sch, block, nest, mapping)
    fused, vector = split_vector(sch, loops, mapping, nest.assumptions)
    step, thread = sch.split(fused, [None, prod(threads.values())])
    bind_kernel(sch, thread, threads)
    sch.unroll(step)
    if vector is not None:
        sch.vectorize(vector)


def bind_kernel(sch: Any, thread: Any, threads: dict[str, int]) -> None:
    """Bind a loop over all threads of a kernel to its thread axes, ``threadIdx.x`` innermost."""
    axes = sorted(threads, reverse=True)
    parts = [thread]
    if len(axes) > 1:
        parts = sch.split(thread, [threads[axis] for axis in axes])
    for loop, axis in zip(parts, axes, strict=True):
        sch.bind(loop, axis)
