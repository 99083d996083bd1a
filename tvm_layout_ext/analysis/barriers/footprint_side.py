"""One of two accesses that are compared: what is known of its loops, and which values they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm
from typing import Any

from ...ir.index_terms import UNKNOWN, Symbol, Term, Uncertain
from .program import EnclosingLoop, SharedEffect

__all__ = ["ComparedAccess", "Relation", "sides", "values_of"]

#: Values of a symbol that are all tried even where its period is shorter.
_FEW = 16
#: Values of a symbol up to which they are enumerated.
_MOST_VALUES = 1 << 12

#: Loops, and how many iterations; None if that can be any number.
Distances = tuple[tuple[EnclosingLoop, int | None], ...]


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

    def among(self, loops: frozenset[EnclosingLoop]) -> Relation:
        """Restrict it to the given loops."""
        if not loops:
            return _ANY
        return Relation(
            tuple(pair for pair in self.at if pair[0] in loops),
            tuple(pair for pair in self.left if pair[0] in loops),
        )


_ANY = Relation()


@dataclass(frozen=True)
class ComparedAccess:
    """An access with what is known about its loops.

    Attributes
    ----------
    access : Access
    shifts : dict of Symbol to int
        Loops that both sides are in: what is added to their common value.
    stands : dict of Symbol to Term
        Loops whose iteration is known.
    """

    access: SharedEffect
    shifts: Mapping[Symbol, int]
    stands: Mapping[Symbol, Term]

    @cached_property
    def symbols(self) -> frozenset[Symbol]:
        """Symbols that the address depends on, known iterations written out."""
        assert self.access.offset is not None
        return self.closure(self.access.offset)

    @cached_property
    def guard_symbols(self) -> frozenset[Symbol]:
        """Symbols that the conditions depend on, known iterations written out."""
        return frozenset().union(*map(self.closure, self.access.guards))

    @cached_property
    def free(self) -> frozenset[Symbol]:
        """Loops whose iteration is not known."""
        return frozenset(self.access.ranges) - self.shifts.keys() - self.stands.keys()

    @cached_property
    def axes(self) -> list[Symbol]:
        """Loops that the address depends on and of which every iteration counts."""
        return sorted(self.free & self.symbols, key=lambda s: s.name)

    @property
    def depth(self) -> int:
        """Axes of arrays of values: lanes, loops, threads."""
        return len(self.axes) + 2

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

    def whole(self, symbol: Symbol) -> range | None:
        """All values of a symbol, if they are known."""
        return self.access.ranges.get(symbol, symbol.whole)

    def with_known(self, values: Mapping[Symbol, Any]) -> dict[Symbol, Any]:
        """Add the loops whose iteration is known in terms of the given values."""
        found = dict(values)
        for loop in self.access.loops:
            meant = self.stands.get(loop.symbol)
            if meant is not None and self.closure(meant) <= values.keys():
                found[loop.symbol] = meant.value(found)
        return found

    def decided(self, steps: Mapping[Symbol, int]) -> list[Term]:
        """Conditions that the values of the address decide; others are taken to hold.

        Parameters
        ----------
        steps : mapping
            Of what the address depends on, see :func:`values_of`.
        """
        return [
            guard
            for guard in self.access.guards
            if all(
                s in steps and _is_whole_period(guard.period(s, self.stands), steps[s])
                for s in self.closure(guard)
            )
        ]


def _is_whole_period(period: int | None, step: int) -> bool:
    """Whether what has a period has the same value at all numbers that are a step apart."""
    return step == 0 or (period is not None and step % period == 0)


def sides(
    earlier: SharedEffect, later: SharedEffect, relation: Relation
) -> tuple[ComparedAccess, ComparedAccess]:
    """What is known of the loops of two accesses.

    Parameters
    ----------
    earlier, later : Access
    relation : Relation
    """
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
    return ComparedAccess(earlier, dict.fromkeys(common, 0), first), ComparedAccess(
        later, common, second
    )


def _plus(start: Term, more: Term | None, number: int) -> Term:
    total = start if more is None else Term("Add", (start, more))
    return Term("Add", (total, Term("const", leaf=number)))


def values_of(symbol: Symbol, compared: Sequence[ComparedAccess]) -> tuple[range, int]:
    """Values of a symbol that make a difference to addresses, and what is not told apart.

    Returns
    -------
    range
        Every value, or one of each that all addresses treat alike.
    int
        Of the latter, how far apart such are; else 0.

    Raises
    ------
    Uncertain
        If there are too many, or nobody knows.
    """
    if symbol is UNKNOWN:
        raise Uncertain(symbol.name)
    found = [side.whole(symbol) for side in compared if symbol in side.access.ranges]
    whole = found[0] if found else symbol.whole
    if whole is not None and len(whole) <= _FEW:
        return whole, 0
    periods = [side.period(symbol) for side in compared if symbol in side.symbols]
    period = lcm(*(p for p in periods if p is not None))
    if None not in periods and period <= _MOST_VALUES and (whole is None or period < len(whole)):
        return range(period), period
    if whole is None or len(whole) > _MOST_VALUES:
        raise Uncertain(symbol.name)
    return whole, 0
