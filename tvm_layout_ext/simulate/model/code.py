"""Compiled expressions: a Python function of (path, mask), and what is known about its value.

``rank`` says what a value depends on: bit 0 the thread, bit 1 time (loop variables, memory). So a
rank of 0 is one number for the whole launch, 1 an array that is computed once a batch, 2 one number
at a time, 3 anything. ``taint`` says that the value can hold poison; the function then returns a
pair of value and poison, else the bare value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .values import either

LAUNCH, FIXED, UNIFORM, VARYING = 0, 1, 2, 3

Run = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Code:
    """A compiled expression; ``terms`` are the signed ones of an integer sum."""

    run: Run
    rank: int
    taint: bool = False
    terms: tuple[tuple[int, Code], ...] | None = None

    @property
    def pair(self) -> Run:
        """The function that always gives ``(value, poison)``."""
        if self.taint:
            return self.run
        run = self.run
        return lambda s, m: (run(s, m), None)

    @property
    def value(self) -> Run:
        """The function that gives the bare value, for places where poison cannot matter."""
        if not self.taint:
            return self.run
        run = self.run
        return lambda s, m: run(s, m)[0]


def constant(value: Any) -> Code:
    """Code of a constant."""
    return Code(lambda s, m: value, LAUNCH)


def set_slot(slot: int, code: Code) -> Run:
    """The function that gives a path's slot a value."""

    def run(s: Any, m: Any) -> None:
        s.slots[slot] = code.run(s, m)

    return run


def in_turn(runs: Sequence[Run | None]) -> Run | None:
    """One function that runs some, one after the other; None if there are none."""
    some = [run for run in runs if run is not None]
    if len(some) <= 1:
        return some[0] if some else None

    def run_all(s: Any, m: Any) -> None:
        for run in some:
            run(s, m)

    return run_all


def mask_and(mask: Any, condition: Any) -> Any:
    """Threads of a mask for which a condition (an array) holds."""
    return condition if mask is None else mask & condition


def lift(function: Callable[..., Any], *codes: Code) -> Code:
    """Apply a NumPy function to the values of codes; poison of any makes the result poison."""
    rank, taint = 0, False
    for code in codes:
        rank, taint = rank | code.rank, taint or code.taint
    if not taint:
        return Code(_lift_clean(function, [c.run for c in codes]), rank)
    pairs = [c.pair for c in codes]
    if len(pairs) == 2:
        return Code(_lift_pair(function, *pairs), rank, True)

    def run(s: Any, m: Any) -> Any:
        values, poison = [], None
        for pair in pairs:
            value, p = pair(s, m)
            values.append(value)
            poison = either(poison, p)
        return function(*values), poison

    return Code(run, rank, True)


def _lift_clean(function: Callable[..., Any], runs: list[Run]) -> Run:
    if len(runs) == 1:
        (only,) = runs
        return lambda s, m: function(only(s, m))
    if len(runs) == 2:
        left, right = runs
        return lambda s, m: function(left(s, m), right(s, m))
    return lambda s, m: function(*[run(s, m) for run in runs])


def _lift_pair(function: Callable[..., Any], left: Run, right: Run) -> Run:
    def run(s: Any, m: Any) -> Any:
        x, p = left(s, m)
        y, q = right(s, m)
        if p is None and q is None:
            return function(x, y), None
        return function(x, y), either(p, q)

    return run
