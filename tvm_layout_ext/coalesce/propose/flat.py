"""All loops as one: neighbouring threads take neighbouring vectors, wherever rows end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...analysis.nest import Loop
from ..block_size import lanes_of, steps_of, threads_for
from ..emit import Iterator, schedule_map
from ..mapping import Mapping
from ..store_policy import keep_gaining_stores
from ..strategy import Strategy
from ..subject import Subject
from ..thread_map import ThreadMap


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
    threads = threads_for(subject.nest, mapping, subject.threads)
    steps = steps_of(subject.nest, mapping, threads)
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
    return Strategy("direct", Direct(subject, (iterator,), spread))


@dataclass(frozen=True)
class Direct:
    """What binds a nest by a thread map; two of them are equal where they do the same."""

    subject: Subject
    iterators: tuple[Iterator, ...]
    threads: ThreadMap

    def __call__(self, sch: Any, block: Any) -> str:
        """Bind, and let the L2 cache keep the nest's stores where that is known to pay."""
        nest, kernel, threads = self.subject.nest, self.subject.kernel, self.threads
        schedule_map(sch, block, nest, self.iterators, threads, kernel)
        kept = "" if kernel else keep_gaining_stores(sch, block, nest, threads.vector)
        return f"{threads}{kept}"
