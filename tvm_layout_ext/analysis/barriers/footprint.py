"""Whether two accesses of shared memory can meet: the bytes that each thread touches, enumerated.

The addresses are evaluated for all threads of a block and all iterations of the loops around an
access. What both accesses see alike (a loop around both, a parameter, a block index) takes every
value that makes a difference: of ``k`` in ``k % 3``, three values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import numpy as np

from ...gpu.hardware import WARP_SIZE
from ...ir.index_terms import Symbol, Term, Uncertain
from .footprint_side import ComparedAccess, Relation, sides, values_of
from .program import Program, SharedEffect

__all__ = ["Footprints"]

#: Touched granules of an access, and cases, up to which they are enumerated.
_MOST_TOUCHES, _MOST_CASES = 1 << 22, 1 << 10
_NOBODY, _MANY = -1, -2
_TAGS = ("threadIdx.x", "threadIdx.y", "threadIdx.z")


@dataclass(frozen=True)
class _Case:
    """Values of what both sides see alike.

    Attributes
    ----------
    known : mapping of Symbol to (int, int)
        A value, and how far apart others are that it stands for, or 0.
    """

    known: Mapping[Symbol, tuple[int, int]]

    def shifted(self, shifts: Mapping[Symbol, int]) -> _Case:
        """The values some iterations later."""
        return _Case({s: (v + shifts.get(s, 0), step) for s, (v, step) in self.known.items()})


@dataclass
class Footprints:
    """Compares the accesses of one kernel.

    Attributes
    ----------
    program : Program
    """

    program: Program
    _met: dict[Any, bool | None] = field(default_factory=dict)
    _prints: dict[Any, tuple[Any, Any]] = field(default_factory=dict)
    _owners: dict[Any, Any] = field(default_factory=dict)
    _overlaps: dict[Any, bool] = field(default_factory=dict)

    @cached_property
    def threads(self) -> int:
        """Threads of a block; 0 if that is no constant."""
        return prod(self.program.threads.values())

    def meet(
        self, earlier: SharedEffect, later: SharedEffect, relation: Relation, who: str
    ) -> bool | None:
        """Whether two accesses, at least one a write, touch a byte by different threads.

        Parameters
        ----------
        earlier, later : Access
        relation : Relation
        who : str
            ``threads``; ``warps``: only threads of different warps count; ``all``: also one thread.

        Returns
        -------
        bool or None
            None if it cannot be told.
        """
        if not earlier.may_disturb(later):
            return False
        if who != "all" and self.threads == 1:
            return False
        relation = relation.among(earlier.index_loops | later.index_loops)
        key = (earlier, later, relation, who)
        if key not in self._met:
            try:
                self._met[key] = self._compare(earlier, later, relation, who)
            except Uncertain:
                self._met[key] = None
        return self._met[key]

    def _compare(
        self, earlier: SharedEffect, later: SharedEffect, relation: Relation, who: str
    ) -> bool:
        if earlier.offset is None or later.offset is None or not self.threads:
            raise Uncertain("address")
        first, second = sides(earlier, later, relation)
        shared = _shared(first, second)
        return any(
            self._overlap(
                self._print(first, case), self._print(second, case.shifted(second.shifts)), who
            )
            for case in _cases(shared, (first, second))
        )

    def _print(self, side: ComparedAccess, case: _Case) -> tuple[Any, Any]:
        """Granules that an access touches, and the threads that do so, as flat arrays."""
        used = side.symbols | side.guard_symbols
        mine = tuple((s, *case.known[s]) for s in sorted(used & case.known.keys(), key=id))
        stands = tuple((s, _text(t)) for s, t in side.stands.items())
        key = (side.access, mine, stands)
        if key not in self._prints:
            self._prints[key] = self._touched(side, case)
        return self._prints[key]

    def _touched(self, side: ComparedAccess, case: _Case) -> tuple[Any, Any]:
        access, granule = side.access, self.program.granule
        assert access.offset is not None
        values, steps = self._arrays(side, case)
        offset = access.offset.value(values)
        active: Any = np.bool_(True)
        for condition in side.decided(steps):
            active = active & np.asarray(condition.value(values), bool)
        width = access.size // granule
        threads = np.arange(self.threads)
        shape = np.broadcast_shapes(np.shape(offset), np.shape(active), threads.shape)
        if prod(shape) * width > _MOST_TOUCHES:
            raise Uncertain("too many addresses")
        first = np.broadcast_to(offset, shape) // granule
        cells = first[..., None] + np.arange(width)
        who = np.broadcast_to(threads, shape)[..., None]
        active = np.broadcast_to(active, shape)[..., None]
        end = self.program.arenas[access.arena] // granule
        # Beyond the arena lie only addresses whose conditions are not known to be false.
        keep = active & (cells >= 0) & (cells < end)
        return cells[keep], np.broadcast_to(who, cells.shape)[keep]

    def _arrays(
        self, side: ComparedAccess, case: _Case
    ) -> tuple[dict[Symbol, Any], dict[Symbol, int]]:
        """Values of all symbols of a side, loops and threads along axes of their own.

        Also which of them stand for others, by how far these are apart.
        """
        values: dict[Symbol, Any] = {s: np.int64(v) for s, (v, _) in case.known.items()}
        steps = {s: step for s, (_, step) in case.known.items()}
        numbers = np.arange(self.threads).reshape([1] * (side.depth - 1) + [-1])
        stride = 1
        for tag in _TAGS:
            extent = self.program.threads.get(tag, 1)
            if tag in self.program.symbols:
                symbol = self.program.symbols[tag]
                values[symbol], steps[symbol] = numbers // stride % extent, 0
            stride *= extent
        for axis, symbol in enumerate(side.axes, start=1):
            shape = [1] * side.depth
            shape[axis] = -1
            every, steps[symbol] = values_of(symbol, (side,))
            values[symbol] = np.asarray(every).reshape(shape)
        return side.with_known(values), steps

    def _overlap(self, first: tuple[Any, Any], second: tuple[Any, Any], who: str) -> bool:
        # Footprints are kept, so that their arrays tell them apart.
        key = (id(first[0]), id(second[0]), who)
        if key not in self._overlaps:
            self._overlaps[key] = self._touch_alike(first, second, who)
        return self._overlaps[key]

    def _touch_alike(self, first: tuple[Any, Any], second: tuple[Any, Any], who: str) -> bool:
        width = {"threads": 1, "warps": WARP_SIZE, "all": 1}[who]
        cells, threads = second
        owner = self._owner(first, width)
        if not len(cells) or owner is None:
            return False
        low, found = owner
        inside = (cells >= low) & (cells < low + len(found))
        met = found[cells[inside] - low]
        other = met != _NOBODY
        if who != "all":
            other &= met != threads[inside] // width
        return bool(other.any())

    def _owner(self, touched: tuple[Any, Any], width: int) -> tuple[int, Any] | None:
        """First granule, and for it and those behind it, which thread or warp touches it."""
        cells, threads = touched
        if not len(cells):
            return None
        key = (id(cells), width)
        if key not in self._owners:
            low = int(cells.min())
            who, at = threads // width, cells - low
            owner = np.full(int(at.max()) + 1, _NOBODY)
            owner[at] = who
            owner[at[owner[at] != who]] = _MANY
            self._owners[key] = low, owner
        return self._owners[key]


def _shared(*compared: ComparedAccess) -> list[Symbol]:
    """What both sides see alike, of what their addresses depend on."""
    used = {s for side in compared for s in side.symbols if not s.thread.startswith("threadIdx")}
    found = sorted(
        used - frozenset().union(*(side.free for side in compared)), key=lambda s: s.name
    )
    if any(symbol.varies for symbol in found):
        raise Uncertain("a value that differs from thread to thread")
    return found


def _cases(shared: Sequence[Symbol], compared: Sequence[ComparedAccess]) -> Iterator[_Case]:
    """Every value that makes a difference of what both sides see alike."""
    ranges = [values_of(symbol, compared) for symbol in shared]
    if prod(len(values) for values, _ in ranges) > _MOST_CASES:
        raise Uncertain("too many cases")
    loops = frozenset().union(*(side.access.ranges for side in compared))
    # Loops of which every iteration is tried: none may be beyond the last.
    whole = {
        s: values
        for s, (values, step) in zip(shared, ranges, strict=True)
        if s in loops and step == 0
    }
    steps = [step for _, step in ranges]
    for values in product(*(values for values, _ in ranges)):
        known = dict(zip(shared, zip(values, steps, strict=True), strict=True))
        if not any(
            known[s][0] + side.shifts.get(s, 0) not in w
            for s, w in whole.items()
            for side in compared
        ):
            yield _Case(known)


def _text(term: Term) -> Any:
    """What tells terms of loop bounds apart."""
    return (term.op, term.leaf, tuple(_text(arg) for arg in term.args))
