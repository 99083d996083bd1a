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
from math import lcm, prod
from typing import Any

import numpy as np

from ..hardware import WARP_SIZE
from .barrier_program import Access, Loop, Program
from .index_terms import UNKNOWN, Symbol, Term, Uncertain

__all__ = ["Footprints", "Relation"]

#: Values of a symbol that are all tried even where its period is shorter.
_FEW = 16
#: Values of a symbol, and touched granules of an access, up to which they are enumerated.
_MOST_VALUES, _MOST_TOUCHES, _MOST_CASES = 1 << 12, 1 << 22, 1 << 10
_NOBODY, _MANY = -1, -2
_TAGS = ("threadIdx.x", "threadIdx.y", "threadIdx.z")

#: Loops, and how many iterations; None if that can be any number.
Distances = tuple[tuple[Loop, int | None], ...]


@dataclass(frozen=True)
class Relation:
    """How far apart in time an earlier and a later access are.

    Attributes
    ----------
    at : Distances
        Loops around the later access: the iteration that it is in, counted from the earlier
        access's iteration of the same execution, or else from the first.
    left : Distances
        Loops around the earlier access that have ended since: iterations before the last.
    """

    at: Distances = ()
    left: Distances = ()

    def among(self, loops: frozenset[Loop]) -> Relation:
        """Restrict it to the given loops."""
        return Relation(
            tuple(pair for pair in self.at if pair[0] in loops),
            tuple(pair for pair in self.left if pair[0] in loops),
        )


@dataclass(frozen=True)
class _Side:
    """An access with what is known about its loops.

    Attributes
    ----------
    access : Access
    shifts : dict of Symbol to int
        Loops that both sides are in: what is added to their common value.
    stands : dict of Symbol to Term
        Loops whose iteration is known.
    """

    access: Access
    shifts: Mapping[Symbol, int]
    stands: Mapping[Symbol, Term]

    @cached_property
    def symbols(self) -> frozenset[Symbol]:
        """Symbols that the address depends on, known iterations written out."""
        assert self.access.offset is not None
        return self.closure(self.access.offset)

    def closure(self, term: Term) -> frozenset[Symbol]:
        """Symbols that a term depends on, known iterations written out."""
        found: set[Symbol] = set()
        for symbol in term.symbols:
            meant = self.stands.get(symbol)
            found |= {symbol} if meant is None else self.closure(meant)
        return frozenset(found)

    def period(self, symbol: Symbol) -> int | None:
        """Period of the address in a symbol."""
        assert self.access.offset is not None
        return self.access.offset.period(symbol, self.stands)


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

    def meet(self, earlier: Access, later: Access, relation: Relation, who: str) -> bool | None:
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
        loops = earlier.index_loops | later.index_loops
        relation = relation.among(loops) if loops else Relation()
        key = (earlier, later, relation, who)
        if key not in self._met:
            try:
                self._met[key] = self._compare(earlier, later, relation, who)
            except Uncertain:
                self._met[key] = None
        return self._met[key]

    def _compare(self, earlier: Access, later: Access, relation: Relation, who: str) -> bool:
        if earlier.offset is None or later.offset is None or not self.threads:
            raise Uncertain("address")
        first, second = _sides(earlier, later, relation)
        return any(
            self._overlap(
                self._print(first, known), self._print(second, _shifted(second, known)), who
            )
            for known in self._cases(first, second)
        )

    def _cases(self, *sides: _Side) -> Iterator[dict[Symbol, int]]:
        """Every value that makes a difference of what both sides see alike."""
        shared = sorted(
            {s for side in sides for s in side.symbols if not s.thread.startswith("threadIdx")}
            - {s for side in sides for s in _free(side)},
            key=lambda s: s.name,
        )
        if any(symbol.varies for symbol in shared):
            raise Uncertain("a value that differs from thread to thread")
        loops = {loop.symbol: loop for side in sides for loop in side.access.loops}
        ranges = [_values(s, loops.get(s), sides) for s in shared]
        if prod(map(len, ranges)) > _MOST_CASES:
            raise Uncertain("too many cases")
        # Loops of which every iteration is tried: none may be beyond the last.
        whole = {
            s: values
            for s, values in zip(shared, ranges, strict=True)
            if s in loops and values == _range(s, loops[s])
        }
        for values in product(*ranges):
            known = dict(zip(shared, values, strict=True))
            if not any(
                known[s] + side.shifts.get(s, 0) not in w
                for s, w in whole.items()
                for side in sides
            ):
                yield known

    def _print(self, side: _Side, known: Mapping[Symbol, int]) -> tuple[Any, Any]:
        """Granules that an access touches, and the threads that do so, as flat arrays."""
        mine = tuple((s, known[s]) for s in sorted(side.symbols & known.keys(), key=id))
        stands = tuple((s, _text(t)) for s, t in side.stands.items())
        key = (side.access, mine, stands)
        if key not in self._prints:
            self._prints[key] = self._touched(side, dict(mine))
        return self._prints[key]

    def _touched(self, side: _Side, known: Mapping[Symbol, int]) -> tuple[Any, Any]:
        access, granule = side.access, self.program.granule
        assert access.offset is not None
        values = self._arrays(side, known)
        offset = access.offset.value(values)
        active: Any = np.bool_(True)
        for condition in access.conditions:
            if side.closure(condition) <= values.keys() and _is_exact(side, condition):
                active = active & np.asarray(condition.value(values), bool)
        steps = access.size // granule
        threads = np.arange(self.threads)
        shape = np.broadcast_shapes(np.shape(offset), np.shape(active), threads.shape)
        if prod(shape) * steps > _MOST_TOUCHES:
            raise Uncertain("too many addresses")
        first = np.broadcast_to(offset, shape) // granule
        cells = first[..., None] + np.arange(steps)
        who = np.broadcast_to(threads, shape)[..., None]
        active = np.broadcast_to(active, shape)[..., None]
        end = self.program.arenas[access.arena] // granule
        # Beyond the arena lie only addresses whose conditions are not known to be false.
        keep = active & (cells >= 0) & (cells < end)
        return cells[keep], np.broadcast_to(who, cells.shape)[keep]

    def _arrays(self, side: _Side, known: Mapping[Symbol, int]) -> dict[Symbol, Any]:
        """Values of all symbols of a side, loops and threads along axes of their own."""
        free = sorted(_free(side) & side.symbols, key=lambda s: s.name)
        loops = {loop.symbol: loop for loop in side.access.loops}
        depth = len(free) + 2
        values: dict[Symbol, Any] = {s: np.int64(v) for s, v in known.items()}
        numbers = np.arange(self.threads).reshape([1] * (depth - 1) + [-1])
        stride = 1
        for tag in _TAGS:
            extent = self.program.threads.get(tag, 1)
            if tag in self.program.symbols:
                values[self.program.symbols[tag]] = numbers // stride % extent
            stride *= extent
        for axis, symbol in enumerate(free, start=1):
            shape = [1] * depth
            shape[axis] = -1
            values[symbol] = np.asarray(_values(symbol, loops[symbol], (side,))).reshape(shape)
        for loop in side.access.loops:
            meant = side.stands.get(loop.symbol)
            if meant is not None and side.closure(meant) <= values.keys():
                values[loop.symbol] = meant.value(values)
        return values

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


def _sides(earlier: Access, later: Access, relation: Relation) -> tuple[_Side, _Side]:
    left = dict(relation.left)
    common: dict[Symbol, int] = {}
    first = {
        loop.symbol: _plus(loop.start, loop.extent, -1 - n)
        for loop, n in left.items()
        if n is not None and loop.start is not None and loop.extent is not None
    }
    second = {}
    for loop, n in relation.at:
        if n is None or loop not in later.loops:
            continue
        if loop in earlier.loops and loop not in left:
            common[loop.symbol] = n
        elif loop.start is not None:
            second[loop.symbol] = _plus(loop.start, None, n)
    return _Side(earlier, dict.fromkeys(common, 0), first), _Side(later, common, second)


def _plus(start: Term, more: Term | None, number: int) -> Term:
    total = start if more is None else Term("Add", (start, more))
    return Term("Add", (total, Term("const", leaf=number)))


def _text(term: Term) -> Any:
    """What tells terms of loop bounds apart."""
    return (term.op, term.leaf, tuple(_text(arg) for arg in term.args))


def _free(side: _Side) -> set[Symbol]:
    """Loops of which every iteration counts."""
    return {loop.symbol for loop in side.access.loops} - side.shifts.keys() - side.stands.keys()


def _shifted(side: _Side, known: Mapping[Symbol, int]) -> dict[Symbol, int]:
    return {s: v + side.shifts.get(s, 0) for s, v in known.items()}


def _is_exact(side: _Side, condition: Term) -> bool:
    """Whether the loops of a condition take all their values, not just one period."""
    loops = {loop.symbol: loop for loop in side.access.loops}
    used = side.closure(condition)
    return all(
        s.thread in _TAGS
        or (_range(s, loops.get(s)) is not None and _takes_all(s, loops.get(s), (side,)))
        for s in used
    )


def _range(symbol: Symbol, loop: Loop | None) -> range | None:
    """All values of a symbol, if they are known."""
    if loop is None:
        return range(symbol.extent) if symbol.extent else None
    if loop.start is None or loop.trips is None:
        return None
    start = loop.start.constant()
    return None if start is None else range(start, start + loop.trips)


def _takes_all(symbol: Symbol, loop: Loop | None, sides: Sequence[_Side]) -> bool:
    return _values(symbol, loop, sides) == _range(symbol, loop)


def _values(symbol: Symbol, loop: Loop | None, sides: Sequence[_Side]) -> range:
    """Values of a symbol that make a difference to addresses."""
    if symbol is UNKNOWN:
        raise Uncertain(symbol.name)
    whole = _range(symbol, loop)
    if whole is not None and len(whole) <= _FEW:
        return whole
    periods = [side.period(symbol) for side in sides if symbol in side.symbols]
    period = lcm(*(p for p in periods if p is not None))
    if None not in periods and period <= _MOST_VALUES and (whole is None or period < len(whole)):
        return range(period)
    if whole is None or len(whole) > _MOST_VALUES:
        raise Uncertain(symbol.name)
    return whole
