"""What a rewrite is inside of: the loops over threads, and what decides who comes there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.s_tir import SBlockRealize


class ThreadConditions:
    """Rules of a rewrite that know the threads and the conditions around each statement.

    A subclass overrides :meth:`loop` and :meth:`realize` for what it rewrites, and leaves the rest
    to :meth:`under`. ``rules`` are for ``structural_mutate``; ``bound`` are the loops over threads
    and blocks, ``conditions`` extents of other loops, predicates and conditions of branches,
    outermost first.
    """

    def __init__(self) -> None:
        self.bound: list[Any] = []
        self.conditions: list[Any] = []
        self.rules: list[Any] = [
            (tirx.For, self._for),
            (SBlockRealize, self.realize),
            (tirx.IfThenElse, self._if),
        ]

    def loop(self, loop: Any, mutator: Any) -> Any:
        """Rewrite a loop that is not bound."""
        return self.under(loop.extent, loop, mutator)

    def realize(self, realize: Any, mutator: Any) -> Any:
        """Rewrite a block, which may have a predicate."""
        return self.under(realize.predicate, realize, mutator)

    def under(self, condition: Any, stmt: Any, mutator: Any) -> Any:
        """Rewrite what a statement holds, all of it under a condition."""
        with _pushed(self.conditions, condition):
            return mutator.default_mutate(stmt)

    @property
    def threads(self) -> dict[str, Any]:
        """Loops around that are bound to threads of a block, by ``threadIdx.x`` and so on."""
        tagged = {str(loop.thread_binding.thread_tag): loop for loop in self.bound}
        return {tag: loop for tag, loop in tagged.items() if tag.startswith("threadIdx.")}

    def _for(self, loop: Any, mutator: Any) -> Any:
        if loop.thread_binding is None:
            return self.loop(loop, mutator)
        with _pushed(self.bound, loop):
            return mutator.default_mutate(loop)

    def _if(self, branch: Any, mutator: Any) -> Any:
        return self.under(branch.condition, branch, mutator)


@contextmanager
def _pushed(stack: list[Any], item: Any) -> Iterator[None]:
    stack.append(item)
    try:
        yield
    finally:
        stack.pop()
