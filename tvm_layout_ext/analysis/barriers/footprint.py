"""Whether two accesses of shared memory can meet: the bytes that each thread touches, enumerated.

What both accesses see alike (a loop around both, a parameter, a block index) takes every value that
makes a difference: of ``k`` in ``k % 3``, three values. All other loops take all their values. A
condition counts where the values of the address decide it, and is taken to hold elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import lcm, prod
from typing import Any

import numpy as np

from ...ir.walk import THREADS, axis_indices
from .program import EnclosingLoop, Program, SharedEffect
from .terms import UNKNOWN, Symbol, Term, Uncertain

#: Touched granules of an access, and cases, up to which they are enumerated.
_MOST_TOUCHES, _MOST_CASES = 1 << 22, 1 << 10
#: Values of a symbol that are all tried even where its period is shorter, and most values at all.
_FEW_VALUES, _MOST_VALUES = 16, 1 << 12
_NOBODY, _MANY = -1, -2

#: Loops around the later of two accesses, and the iteration that it is in, counted from that of the
#: earlier one, or from the first if this one is not in the loop; None for any. Also loops that have
#: ended around the earlier one, and the iteration that this was in, the last being -1.
Distances = tuple[tuple[EnclosingLoop, int | None], ...]
#: Values of symbols, and for each how far apart others are that it stands for, or 0.
_Case = Mapping[Symbol, tuple[int, int]]


class _Touched:
    """Granules that an access touches in a case, and the threads that do so, as flat arrays."""

    def __init__(self, cells: np.ndarray, threads: np.ndarray) -> None:
        self.cells, self.threads = cells, threads
        self.first, self.last = (int(cells.min()), int(cells.max())) if len(cells) else (0, -1)
        self._owners: dict[int, np.ndarray] = {}

    def owners(self, lanes: int) -> np.ndarray:
        """Who touches each granule from the first to the last: threads, or warps of ``lanes``."""
        if lanes not in self._owners:
            who, cells = self.threads // max(1, lanes), self.cells - self.first
            owner = np.full(self.last - self.first + 1, _NOBODY)
            owner[cells] = who
            owner[cells[owner[cells] != who]] = _MANY
            self._owners[lanes] = owner
        return self._owners[lanes]

    def meets(self, other: _Touched, lanes: int) -> bool:
        """Whether both have a granule in common that order is not given for."""
        # Most pairs are of tiles that lie apart; some 90,000 are compared of a float32 product.
        first, last = max(self.first, other.first), min(self.last, other.last)
        if first > last:
            return False
        common = slice(first - self.first, last - self.first + 1)
        mine = self.owners(lanes)[common]
        its = other.owners(lanes)[first - other.first : last - other.first + 1]
        apart = (mine != _NOBODY) & (its != _NOBODY)
        if lanes:
            apart &= (mine != its) | (mine == _MANY)
        return bool(apart.any())


@dataclass
class Footprints:
    """Compares the accesses of one kernel, and remembers what it found."""

    program: Program
    _met: dict[Any, bool | None] = field(default_factory=dict)
    _possible: dict[tuple[SharedEffect, SharedEffect], bool] = field(default_factory=dict)
    _reached: dict[SharedEffect, _Touched | None] = field(default_factory=dict)
    _touched: dict[Any, _Touched] = field(default_factory=dict)

    @cached_property
    def threads(self) -> int:
        """Threads of a block; 0 if that is no constant."""
        return prod(self.program.threads.values())

    def meet(
        self, earlier: SharedEffect, later: SharedEffect, at: Distances, lanes: int
    ) -> bool | None:
        """Whether two accesses touch a byte by different threads; None if it cannot be told.

        Order is given among so many ``lanes``: 1, those of a warp, or 0 if not even one thread's
        own accesses are in order.
        """
        if not earlier.may_disturb(later) or (lanes and self.threads == 1):
            return False
        if not self._can_meet(earlier, later):
            return False
        used = earlier.index_loops | later.index_loops
        at = tuple(pair for pair in at if pair[0] in used)
        key = (earlier, later, at, lanes)
        if key not in self._met:
            try:
                self._met[key] = self._compare(earlier, later, at, lanes)
            except Uncertain:
                self._met[key] = None
        return self._met[key]

    def _can_meet(self, earlier: SharedEffect, later: SharedEffect) -> bool:
        """Whether two accesses ever touch the same granule, in whatever iterations; if unsure, yes.

        Of 600 copies and reads of a float32 product this settles all but a few pairs.
        """
        first, second = self._reach(earlier), self._reach(later)
        if first is None or second is None:
            return True
        if first.first > second.last or second.first > first.last:
            return False
        pair = earlier, later
        if pair not in self._possible:
            self._possible[pair] = first.meets(second, 0)
        return self._possible[pair]

    def _reach(self, access: SharedEffect) -> _Touched | None:
        """What an access touches in all iterations, as far as that can be told."""
        try:
            return self._reached[access]
        except KeyError:
            found = None
        with suppress(Uncertain):
            if access.offset is not None and self.threads:
                found = self._touches(access, {})
        self._reached[access] = found
        return found

    def _compare(
        self, earlier: SharedEffect, later: SharedEffect, at: Distances, lanes: int
    ) -> bool:
        if earlier.offset is None or later.offset is None or not self.threads:
            raise Uncertain("address")
        shifts, ended, begun = _known(earlier, later, at)
        loops = {loop.symbol: loop.values for one in (earlier, later) for loop in one.loops}
        for case in _cases((earlier, later), shifts, loops):
            moved = {s: (v + shifts.get(s, 0), step) for s, (v, step) in case.items()}
            touched = self._touches(earlier, {**case, **ended})
            if touched.meets(self._touches(later, {**moved, **begun}), lanes):
                return True
        return False

    def _touches(self, access: SharedEffect, case: _Case) -> _Touched:
        known = {symbol: case[symbol] for symbol in access.symbols if symbol in case}
        key = (access, *known.items())
        if key not in self._touched:
            self._touched[key] = _Touched(*self._enumerated(access, known))
        return self._touched[key]

    def _enumerated(self, access: SharedEffect, known: _Case) -> tuple[Any, Any]:
        assert access.offset is not None
        granule = self.program.granule
        values, steps = self._values(access, known)
        offset = access.offset.value(values)
        active: Any = np.bool_(True)
        for condition in access.conditions:
            if _is_decided(condition, steps):
                active = active & np.asarray(condition.value(values), bool)
        width = access.size // granule
        threads = np.arange(self.threads)[:, None]
        shape = np.broadcast_shapes(np.shape(offset), np.shape(active), threads.shape)
        if prod(shape) * width > _MOST_TOUCHES:
            raise Uncertain("too many addresses")
        first = np.broadcast_to(offset, shape) // granule
        cells = first[..., None] + np.arange(width)
        who = np.broadcast_to(threads, shape)[..., None]
        active = np.broadcast_to(active, shape)[..., None]
        # Beyond the arena lie only addresses whose conditions are not known to be false.
        keep = active & (cells >= 0) & (cells < self._granules(access))
        return cells[keep], np.broadcast_to(who, cells.shape)[keep]

    def _granules(self, access: SharedEffect) -> int:
        return self.program.arenas[access.arena] // self.program.granule

    def _values(
        self, access: SharedEffect, known: _Case
    ) -> tuple[dict[Symbol, Any], dict[Symbol, int]]:
        """Values of all symbols of an access, other loops and threads along axes of their own."""
        others = [loop for loop in access.index_loops if loop.symbol not in known]
        others.sort(key=lambda loop: loop.symbol.name)
        # Threads lie along the last axis but one, lanes of a vector along the last.
        depth = len(others) + 2
        values: dict[Symbol, Any] = {s: np.int64(v) for s, (v, _) in known.items()}
        steps = {s: step for s, (_, step) in known.items()}
        numbers = np.arange(self.threads).reshape([1] * len(others) + [-1, 1])
        extents = {tag: self.program.threads.get(tag, 1) for tag in THREADS}
        for tag, index in axis_indices(numbers, extents).items():
            if tag in self.program.symbols:
                symbol = self.program.symbols[tag]
                values[symbol], steps[symbol] = index, 0
        for axis, loop in enumerate(others, start=1):
            every, steps[loop.symbol] = _values_of(loop.symbol, loop.values, (access,))
            values[loop.symbol] = np.asarray(every).reshape([-1] + [1] * (depth - axis))
        return values, steps


def _known(
    earlier: SharedEffect, later: SharedEffect, at: Distances
) -> tuple[dict[Symbol, int], dict[Symbol, tuple[int, int]], dict[Symbol, tuple[int, int]]]:
    """Distances of common loops, and values of loops that have ended, and that have begun."""
    shifts, ended, begun = {}, {}, {}
    for loop, n in at:
        if n is not None and n < 0:
            if loop.values and -n <= len(loop.values):
                ended[loop.symbol] = (loop.values[n], 0)
        elif n is not None and loop in later.loops:
            if loop in earlier.loops:
                shifts[loop.symbol] = n
            elif loop.first is not None:
                begun[loop.symbol] = (loop.first + n, 0)
    return shifts, ended, begun


def _is_decided(condition: Term, steps: Mapping[Symbol, int]) -> bool:
    """Whether the enumerated values decide a condition, also for the values they stand for."""
    for symbol in condition.symbols:
        step = steps.get(symbol)
        period = condition.period(symbol)
        if step is None or (step and (period is None or step % period)):
            return False
    return True


def _cases(
    accesses: Sequence[SharedEffect],
    shifts: Mapping[Symbol, int],
    loops: Mapping[Symbol, range | None],
) -> Iterator[_Case]:
    """Every value that makes a difference of what both accesses see alike."""
    used = {s for one in accesses for s in one.symbols if not s.thread.startswith("threadIdx")}
    shared = sorted(used - (loops.keys() - shifts.keys()), key=lambda s: s.name)
    if any(symbol.varies for symbol in shared):
        raise Uncertain("a value that differs from thread to thread")
    ranges = [_values_of(symbol, loops.get(symbol, symbol.whole), accesses) for symbol in shared]
    if prod(len(values) for values, _ in ranges) > _MOST_CASES:
        raise Uncertain("too many cases")
    steps = [step for _, step in ranges]
    # Where every iteration is tried, the later one must not be beyond the last.
    ends = [
        v if s in shifts and not step else None for s, (v, step) in zip(shared, ranges, strict=True)
    ]
    for values in product(*(values for values, _ in ranges)):
        moved = (v + shifts.get(s, 0) for s, v in zip(shared, values, strict=True))
        if all(end is None or v in end for end, v in zip(ends, moved, strict=True)):
            yield dict(zip(shared, zip(values, steps, strict=True), strict=True))


def _values_of(
    symbol: Symbol, whole: range | None, accesses: Sequence[SharedEffect]
) -> tuple[range, int]:
    """A symbol's values that make a difference to addresses, and the distance of equals, or 0."""
    if symbol is UNKNOWN:
        raise Uncertain(symbol.name)
    if whole is not None and len(whole) <= _FEW_VALUES:
        return whole, 0
    offsets = [one.offset for one in accesses if one.offset is not None and symbol in one.symbols]
    periods = [offset.period(symbol) for offset in offsets]
    period = lcm(*(p for p in periods if p is not None))
    if None not in periods and period <= _MOST_VALUES and (whole is None or period < len(whole)):
        return range(period), period
    if whole is None or len(whole) > _MOST_VALUES:
        raise Uncertain(symbol.name)
    return whole, 0
