"""Index expressions as small Python trees: which symbols they use, their period, their values.

Lets are written out, so that a term depends on loops, threads, blocks and parameters alone. A load
or an unknown call inside makes a term unknown: it depends on :data:`UNKNOWN`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import lcm
from typing import Any

import numpy as np
import tvm
from tvm import tirx

from .evaluate import ARITHMETIC
from .ops import CHOICE, LIKELY


class Uncertain(Exception):  # noqa: N818 (an answer, not an error)
    """Nothing exact can be said."""


@dataclass(frozen=True, eq=False)
class Symbol:
    """A variable: a loop's, a thread or block index, a parameter.

    Attributes
    ----------
    name : str
        For people.
    thread : str
        ``threadIdx.x`` and so on, else empty.
    varies : bool
        Whether two threads of a block may see different values at the same place.
    extent : int
        Of a thread or block index, if it is a constant, else 0.
    """

    name: str
    thread: str = ""
    varies: bool = False
    extent: int = 0

    @property
    def whole(self) -> range | None:
        """All values of a thread or block index, if they are known."""
        return range(self.extent) if self.extent else None


#: What a load or an unknown call gives.
UNKNOWN = Symbol("unknown", varies=True)
Rule = Callable[..., Any]
_RULES: dict[str, Rule] = {
    **{kind.__name__: rule for kind, rule in ARITHMETIC.items()},
    "Not": np.logical_not,
    "Select": np.where,
    "Ramp": lambda base, stride, lanes: base + stride * lanes,
}


@dataclass(frozen=True, eq=False)
class Term:
    """A node of an index expression.

    Attributes
    ----------
    op : str
        ``const``, ``symbol``, or the name of a rule.
    args : tuple of Term
    leaf : int, Symbol or None
        Of a constant or symbol; of a ramp, its lanes.
    """

    op: str
    args: tuple[Term, ...] = ()
    leaf: Any = None

    @cached_property
    def symbols(self) -> frozenset[Symbol]:
        """What it depends on."""
        if self.op == "symbol":
            return frozenset([self.leaf])
        return frozenset().union(*(arg.symbols for arg in self.args))

    @property
    def varies(self) -> bool:
        """Whether two threads of a block may see different values."""
        return any(symbol.varies for symbol in self.symbols)

    @cached_property
    def lanes(self) -> int:
        """Elements of the vector that it is, or 1."""
        own = self.leaf if self.op == "Ramp" else 1
        return int(max([own, *(arg.lanes for arg in self.args)]))

    def constant(self) -> int | None:
        """Its value if it is a constant."""
        return None if self.symbols or self.lanes > 1 else int(self.value({}))

    def value(self, known: Mapping[Symbol, Any]) -> Any:
        """Evaluate for arrays of values; lanes lie along the first axis.

        Raises
        ------
        Uncertain
            If a symbol has no value.
        """
        if self.op == "const":
            return np.int64(self.leaf)
        if self.op == "symbol":
            found = known.get(self.leaf)
            if found is None:
                raise Uncertain(self.leaf.name)
            return found
        values = [arg.value(known) for arg in self.args]
        if self.op == "Ramp":
            depth = max(np.ndim(v) for v in known.values())
            values.append(np.arange(self.leaf).reshape(-1, *[1] * (depth - 1)))
        return _RULES[self.op](*values)

    def period(self, symbol: Symbol, stands: Mapping[Symbol, Term]) -> int | None:
        """A number that can be added to a symbol without any effect, if there is one.

        Other symbols stand for the terms in ``stands``.
        """
        if not self.symbols.isdisjoint(stands):
            return self._period(symbol, stands)
        if symbol not in self._periods:
            self._periods[symbol] = self._period(symbol, {}) if symbol in self.symbols else 1
        return self._periods[symbol]

    @cached_property
    def _periods(self) -> dict[Symbol, int | None]:
        """Periods that were asked for, where no symbol stands for a term."""
        return {}

    def _period(self, symbol: Symbol, stands: Mapping[Symbol, Term]) -> int | None:
        if self.op == "symbol":
            if self.leaf is symbol:
                return None
            meant = stands.get(self.leaf)
            return 1 if meant is None else meant.period(symbol, stands)
        modulus = self._modulus()
        if modulus is not None:
            return self.args[0]._period_modulo(modulus, symbol, stands)
        return _joined([arg.period(symbol, stands) for arg in self.args])

    def _modulus(self) -> int | None:
        """The constant c of ``x % c``, or of ``x & (c - 1)`` where c is a power of two."""
        if self.op not in ("FloorMod", "BitwiseAnd"):
            return None
        number = self.args[1].constant()
        if self.op == "FloorMod" or number is None:
            return number
        return number + 1 if number >= 0 and number & (number + 1) == 0 else None

    def _period_modulo(
        self, modulus: int, symbol: Symbol, stands: Mapping[Symbol, Term]
    ) -> int | None:
        """The same, where only the value modulo a constant matters."""
        if symbol not in self.symbols and self.symbols.isdisjoint(stands):
            return 1
        if self.op == "symbol":
            if self.leaf is symbol:
                return modulus
            meant = stands.get(self.leaf)
            return 1 if meant is None else meant._period_modulo(modulus, symbol, stands)
        if self.op in ("Add", "Sub", "Mul"):
            return _joined([arg._period_modulo(modulus, symbol, stands) for arg in self.args])
        return self.period(symbol, stands)


def _joined(periods: list[int | None]) -> int | None:
    known = [p for p in periods if p is not None]
    return lcm(*known) if len(known) == len(periods) else None


@dataclass(frozen=True)
class Scope:
    """What the variables mean at some place of a program.

    Attributes
    ----------
    terms : mapping
        Terms of the variables, by ``__chandle__()``.
    read_only : frozenset of int
        Buffers in global memory that nothing writes, by ``__chandle__()``: all threads load the
        same from the same place.
    outer : dict
        Terms of the variables that come from outside the kernel, filled as they are met.
    """

    terms: Mapping[int, Term] = field(default_factory=dict)
    read_only: frozenset[int] = frozenset()
    outer: dict[int, Term] = field(default_factory=dict)

    def having(self, var: Any, term: Term) -> Scope:
        """Add a variable."""
        terms = {**self.terms, var.__chandle__(): term}
        return Scope(terms, self.read_only, self.outer)

    def variable(self, var: Any) -> Term:
        """What a variable means; one that nothing here binds comes from outside the kernel."""
        key = var.__chandle__()
        found = self.terms.get(key)
        if found is not None:
            return found
        return self.outer.setdefault(key, Term("symbol", leaf=Symbol(str(var.name))))


def term_of(expr: Any, scope: Scope) -> Term:
    """Turn a TIR expression into a term."""
    if isinstance(expr, int | tirx.IntImm):
        return Term("const", leaf=int(expr))
    if isinstance(expr, tirx.Var):
        return scope.variable(expr)
    name = type(expr).__name__
    if name in ("Cast", "Broadcast"):
        return term_of(expr.value, scope)
    if name == "Ramp":
        parts = (term_of(expr.base, scope), term_of(expr.stride, scope))
        return Term("Ramp", parts, int(expr.lanes))
    if name == "Let":
        return term_of(expr.body, scope.having(expr.var, term_of(expr.value, scope)))
    if name == "Select":
        return _select((expr.condition, expr.true_value, expr.false_value), scope)
    if isinstance(expr, tvm.ir.Call):
        return _call(expr, scope)
    if name == "Not":
        return Term(name, (term_of(expr.a, scope),))
    if name == "TensorLoad":
        return _load(expr, scope)
    if name in _RULES:
        return Term(name, (term_of(expr.a, scope), term_of(expr.b, scope)))
    return _UNKNOWN


_UNKNOWN = Term("symbol", leaf=UNKNOWN)


def _select(parts: Any, scope: Scope) -> Term:
    return Term("Select", tuple(term_of(part, scope) for part in parts))


def _call(expr: Any, scope: Scope) -> Term:
    name = getattr(expr.op, "name", "")
    if name == CHOICE:
        return _select(expr.args, scope)
    if name == LIKELY:
        return term_of(expr.args[0], scope)
    return _UNKNOWN


def _load(expr: Any, scope: Scope) -> Term:
    if expr.source.__chandle__() not in scope.read_only:
        return _UNKNOWN
    varies = any(term_of(index, scope).varies for index in expr.indices)
    return Term("symbol", leaf=Symbol(str(expr.source.name), varies=varies))
