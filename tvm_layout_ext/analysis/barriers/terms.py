"""Index expressions in the symbols of a kernel alone: which they use, their period, their values.

Lets are written out, so that a term depends on loops, threads, blocks and parameters alone. A load
or an unknown call inside makes a term unknown: it depends on :data:`UNKNOWN`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import lcm
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...ir.evaluate import evaluate
from ...ir.ops import CHOICE, LIKELY
from ...ir.queries import depends_on, is_call_of


class Uncertain(Exception):  # noqa: N818 (an answer, not an error)
    """Nothing exact can be said."""


@dataclass(frozen=True, eq=False)
class Symbol:
    """A variable: a loop's, a thread or block index, a parameter."""

    var: Any  #: Stands for it in terms
    thread: str = ""  #: ``threadIdx.x`` and so on, else empty
    #: Whether two threads of a block may see different values at the same place.
    varies: bool = False
    extent: int = 0  #: Of a thread or block index, if it is a constant, else 0

    @property
    def whole(self) -> range | None:
        """All values of a thread or block index, if they are known."""
        return range(self.extent) if self.extent else None

    @property
    def name(self) -> str:
        """Name of its variable."""
        return str(self.var.name)


#: What a load or an unknown call gives.
UNKNOWN = Symbol(tirx.Var("unknown", "int32"), varies=True)


@dataclass(frozen=True, eq=False)
class Term:
    """A TIR expression in variables of symbols; one that ``known`` has not is :data:`UNKNOWN`."""

    expr: Any
    known: Mapping[Any, Symbol]

    @cached_property
    def symbols(self) -> frozenset[Symbol]:
        """What it depends on."""
        used = tirx.analysis.undefined_vars(self.expr)
        return frozenset(self.known.get(var, UNKNOWN) for var in used)

    @property
    def varies(self) -> bool:
        """Whether two threads of a block may see different values."""
        return any(symbol.varies for symbol in self.symbols)

    def constant(self) -> int | None:
        """Its value if it is a constant."""
        is_number = not self.symbols and self.expr.ty.is_scalar()
        return int(evaluate(self.expr, {})) if is_number else None

    def value(self, values: Mapping[Symbol, Any]) -> Any:
        """Evaluate for arrays of values, whose last axis is for the lanes of vectors."""
        for symbol in self.symbols - values.keys():
            raise Uncertain(symbol.name)
        return evaluate(self.expr, {one.var: values[one] for one in self.symbols})

    def period(self, symbol: Symbol) -> int | None:
        """A number that can be added to a symbol without any effect, if there is one."""
        if symbol not in self._periods:
            self._periods[symbol] = _period(self.expr, symbol.var)
        return self._periods[symbol]

    @cached_property
    def _periods(self) -> dict[Symbol, int | None]:
        return {}

    def part(self, expr: Any) -> Term:
        """Another expression in the same variables."""
        return Term(expr, self.known)


def _period(expr: Any, var: Any) -> int | None:
    if not depends_on(expr, var):
        return 1
    if isinstance(expr, tirx.Var):
        return None
    modulus = _modulus(expr)
    if modulus is not None:
        return _period_modulo(expr.a, modulus, var)
    return _joined([_period(part, var) for part in _children(expr)])


def _children(node: Any) -> list[Any]:
    """List the operands whose values make up a node's."""
    if isinstance(node, tirx.Cast | tirx.Broadcast):
        return [node.value]
    if isinstance(node, tirx.Ramp):
        return [node.base, node.stride]
    if isinstance(node, tirx.Select):
        return [node.condition, node.true_value, node.false_value]
    if isinstance(node, tvm.ir.Call):
        return [*node.args]
    return [getattr(node, side) for side in ("a", "b") if hasattr(node, side)]


def _modulus(expr: Any) -> int | None:
    """The constant c of ``x % c``, or of ``x & (c - 1)`` where c is a power of two."""
    if not isinstance(expr, tirx.FloorMod | tirx.BitwiseAnd):
        return None
    number = expr.b.value if isinstance(expr.b, tirx.Broadcast) else expr.b
    if not isinstance(number, tirx.IntImm):
        return None
    if isinstance(expr, tirx.FloorMod):
        return int(number)
    mask = int(number)
    return mask + 1 if mask >= 0 and mask & (mask + 1) == 0 else None


def _period_modulo(expr: Any, modulus: int, var: Any) -> int | None:
    """The period where only the value modulo a constant matters."""
    if isinstance(expr, tirx.Var):
        return modulus if expr.same_as(var) else 1
    if isinstance(expr, tirx.Add | tirx.Sub | tirx.Mul | tirx.Cast | tirx.Broadcast):
        return _joined([_period_modulo(part, modulus, var) for part in _children(expr)])
    return _period(expr, var)


def _joined(periods: list[int | None]) -> int | None:
    known = [p for p in periods if p is not None]
    return lcm(*known) if len(known) == len(periods) else None


@dataclass(frozen=True)
class Scope:
    """What the variables mean at some place of a kernel."""

    #: Those in global memory that nothing writes: all threads load the same from one place.
    read_only: frozenset[Any] = frozenset()
    #: What variables stand for, in those of symbols.
    values: Mapping[Any, Any] = field(default_factory=dict)
    #: Symbols by their variables, those of the whole kernel.
    known: dict[Any, Symbol] = field(default_factory=dict)

    def having(self, var: Any, meant: Term | Symbol) -> Scope:
        """Add a variable."""
        if isinstance(meant, Symbol):
            self.known[meant.var] = meant
        value = meant.var if isinstance(meant, Symbol) else meant.expr
        return replace(self, values={**self.values, var: value})

    def term(self, expr: Any) -> Term:
        """Write what a TIR expression means in symbols."""
        rules = [
            (tirx.Var, self._variable),
            (tirx.Let, self._let),
            (tvm.ir.Call, self._call),
            (tvm.ir.TensorLoad, self._load),
            *((kind, lambda one, _: _fresh(one)) for kind in (tirx.FloatImm, tirx.Shuffle)),
        ]
        if isinstance(expr, int):
            return Term(tirx.IntImm("int64", expr), self.known)
        return Term(tvm_ffi.structural_mutate(expr, rules), self.known)

    def _variable(self, var: Any, _mutator: Any) -> Any:
        """What a variable stands for; one that nothing here binds comes from outside the kernel."""
        if var in self.values:
            return self.values[var]
        self.known.setdefault(var, Symbol(var))
        return var

    def _let(self, let: Any, _mutator: Any) -> Any:
        return self.having(let.var, self.term(let.value)).term(let.body).expr

    def _call(self, call: Any, mutator: Any) -> Any:
        return mutator.default_mutate(call) if is_call_of(call, CHOICE, LIKELY) else _fresh(call)

    def _load(self, load: Any, _mutator: Any) -> Any:
        var = _fresh(load, str(load.source.name))
        if load.source in self.read_only:
            varies = any(self.term(index).varies for index in load.indices)
            self.known[var] = Symbol(var, varies=varies)
        return var


def _fresh(expr: Any, name: str = "unknown") -> Any:
    return tirx.Var(name, expr.ty)
