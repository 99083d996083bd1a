"""All loops as one: neighbouring threads take neighbouring vectors, wherever rows end."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

from ...analysis.nest import Loop
from ...gpu.hardware import MAX_ACCESS_BYTES, WARP_SIZE
from ...ir.evaluate import placeholder_extent
from ..emit import Iterator, schedule_map
from ..mapping import Mapping
from ..store_policy import keep_gaining_stores
from ..strategy import Strategy
from ..subject import Subject
from ..thread_map import ThreadMap

#: Threads of a block whose accesses agree. On an H200 a copy of 16384^2 halves ran at 4.26 TB/s so,
#: 4.24 with 256 and 4.22 with 512; two vectors a thread took it to 4.24, four of 1 GiB from 251.7
#: to 263 us.
_THREADS = 128
#: Bytes that a thread moves where an access is narrower than a full vector, or goes where another
#: load tells it: both wait less for two at once (a gather of rows took 128.8 us, one vector 132).
_THREAD_BYTES = 32
#: Most accesses of a thread that are on their way together, however narrow.
_STEPS = 4
#: Blocks below which more of them matter more than steps a thread.
_MANY_BLOCKS = 512


def flat(subject: Subject) -> list[Strategy]:
    """Propose the best order with its vectors, and the loops as they are, element by element."""
    if subject.kernel is not None or subject.is_reduction:
        return []
    return [flat_map(subject, mapping) for mapping in orders(subject.mapping, subject.free)]


def in_loop_order(free: Sequence[Loop]) -> Mapping:
    """Loops in their order, one element a lane."""
    return Mapping(tuple(free), 1, 1, ())


def orders(best: Mapping, free: Sequence[Loop]) -> list[Mapping]:
    """List the best order, and that of the loops where it is another."""
    is_plain = best.vector == 1 and all(a is b for a, b in zip(best.order, free, strict=True))
    return [best] if is_plain else [best, in_loop_order(free)]


def flat_map(subject: Subject, mapping: Mapping) -> Strategy:
    """Propose one order of all loops that hold no reduction."""
    vectors = groups_of(mapping)
    threads, steps = threads_for(mapping, subject.threads), _steps(subject, mapping)
    while steps > 1 and vectors < steps * threads * _MANY_BLOCKS:
        steps //= 2
    iterator = Iterator(mapping.order, mapping.run)
    lanes = lanes_of(threads)
    spread = ThreadMap.of(
        (iterator.name,),
        ("vector", [(0, mapping.vector)]),
        ("lane", [(0, lanes)]),
        ("warp", [(0, threads // lanes)]),
        ("register", [(0, steps)]),
        ("block", [(0, None)]),
    )
    return Strategy("direct", partial(map_direct, subject, [iterator], spread))


def map_direct(
    subject: Subject, iterators: list[Iterator], threads: ThreadMap, sch: Any, block: Any
) -> str:
    """Bind a nest, and let the L2 cache keep its stores where that is known to pay."""
    schedule_map(sch, block, subject.nest, iterators, threads, subject.kernel)
    kept = "" if subject.kernel else keep_gaining_stores(sch, block, subject.nest, threads.vector)
    return f"{threads}{kept}"


def groups_of(mapping: Mapping) -> int:
    """Vectors in all."""
    run = prod(placeholder_extent(loop.extent) for loop in mapping.inner)
    outer = prod(placeholder_extent(loop.extent) for loop in mapping.order[: -mapping.run])
    return outer * -(-run // mapping.vector)


def threads_for(mapping: Mapping, asked: int | None) -> int:
    """Threads of a block: 128 where none are asked for, less where there is not enough to do."""
    enough = WARP_SIZE * max(1, -(-groups_of(mapping) // WARP_SIZE))
    return asked or min(_THREADS, enough)


def lanes_of(threads: int) -> int:
    """Lanes of a warp: 32, or as many as fill warps of fewer alike."""
    return min(WARP_SIZE, threads & -threads)


def _steps(subject: Subject, mapping: Mapping) -> int:
    """Accesses that a thread does one after the other, by the widest of them."""
    accesses = subject.nest.of_scope("global")
    widest = mapping.vector * max((access.bytes for access in accesses), default=1)
    if widest >= MAX_ACCESS_BYTES and all(access.is_affine() for access in accesses):
        return 1
    return max(1, min(_STEPS, _THREAD_BYTES // widest))
