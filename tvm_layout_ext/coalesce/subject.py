"""What strategies look at: a block, what may be done with it, and what was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from ..analysis.nest import Loop, Nest, read_nest
from .checks import check_registers, enclosing_threads, free_loops, threads_of
from .emit import Iterator
from .isolate import Isolated, isolate
from .mapping import Mapping, choose_mapping, merged_groups
from .request import Request


@dataclass(frozen=True, eq=False)
class Subject:
    """A block that is to be mapped; equal is only the same object, as schedules change."""

    sch: Any
    block: Any
    nest: Nest  #: The block as it is
    free: tuple[Loop, ...]  #: Its loops that may be mapped
    kernel: dict[str, int] | None  #: Thread axes of the kernel around it
    request: Request
    isolated: Isolated | None = None  #: The program that it is in, if that is not the user's own

    @classmethod
    def of(
        cls,
        sch: Any,
        block: Any,
        request: Request,
        isolated: Isolated | None = None,
        nest: Nest | None = None,
    ) -> Subject:
        """Read a block of a schedule, if its nest was not read before.

        Raises
        ------
        ScheduleError
            If its loops are not free, or its kernel has other threads than are asked for.
        """
        nest = read_nest(sch, block) if nest is None else nest
        kernel = enclosing_threads(sch, block, nest)
        free = free_loops(nest, inside=kernel is not None)
        if kernel is not None:
            check_registers(nest)
            kernel = threads_of(nest, kernel, request)
        return cls(sch, block, nest, tuple(free), kernel, request, isolated)

    @property
    def is_reduction(self) -> bool:
        """Whether it sums anything, or the like."""
        return any(loop.is_reduction for loop in self.nest.loops)

    @property
    def threads(self) -> int | None:
        """Threads that it has, or that are asked for."""
        return self.request.num_threads if self.kernel is None else prod(self.kernel.values())

    @cached_property
    def mapping(self) -> Mapping:
        """The order of loops and the vector that suit most accesses."""
        return choose_mapping(self.nest, self.free, self.request.vector_bytes)

    @cached_property
    def groups(self) -> tuple[Iterator, ...]:
        """Loops in that order, those that every access walks as one together."""
        groups = merged_groups(self.nest, self.mapping)
        return tuple(Iterator(tuple(group), len(group)) for group in groups)

    @cached_property
    def apart(self) -> Subject:
        """The block in a program of its own.

        Raises ScheduleError if other blocks have its name.
        """
        found = isolate(self.sch, self.nest)
        return Subject.of(found.sch, found.block, self.request, found)
