"""A block inside a kernel, spread over the threads that the kernel has.

Shared memory on either side keeps its layout: which swizzle suits it is for the accesses of its
other users to say, whose loops may not be bound yet. Of a reduction each thread does results of
its own.
"""

from __future__ import annotations

from ...errors import ScheduleError
from ..block_size import lanes_of
from ..emit import Iterator
from ..mapping import Mapping
from ..strategy import Strategy
from ..subject import Subject
from ..thread_map import ThreadMap
from .flat import Direct, in_loop_order, orders


def in_kernel(subject: Subject) -> list[Strategy]:
    """Propose the best order with its vectors, and the loops as they are."""
    if subject.kernel is None:
        return []
    best, free = subject.mapping, subject.free
    if subject.is_reduction:
        free = tuple(loop for loop in free if not loop.is_reduction)
        best = in_loop_order([loop for loop in best.order if not loop.is_reduction])
    if not free:
        raise ScheduleError("there is one result, which one thread alone would sum")
    return [map_in_kernel(subject, mapping) for mapping in orders(best, free)]


def map_in_kernel(subject: Subject, mapping: Mapping) -> Strategy:
    """Propose one order of the loops that hold no reduction."""
    iterator = Iterator(mapping.order, mapping.run)
    threads = subject.threads or 1
    spread = ThreadMap.of(
        (iterator.name,),
        ("vector", [(0, mapping.vector)]),
        ("lane", [(0, lanes_of(threads))]),
        ("warp", [(0, threads // lanes_of(threads))]),
        ("register", [(0, None)]),
    )
    return Strategy("copy", Direct(subject, (iterator,), spread))
