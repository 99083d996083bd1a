"""Axis information of TIR index expressions, sound for every input.

The rules are the set ``tir`` of the table in :mod:`.arithmetic`, because a claim made here decides
whether a vector access is emitted. This file proves what an entry of the table demands: that a
result stays in its type's range, that a divisor is positive. No proof rests on arithmetic that may
wrap.

Axes may have any extent, known or not. They are taken to be rounded up to a power of two: a claim
about aligned groups of the longer axis holds of the shorter one, whose last group is cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from math import gcd
from typing import Any

import tvm
from tvm import tirx

from ...ir.index_types import children, is_bool, is_integer, padded, range_of
from ..assumptions import NO_ASSUMPTIONS, Assumptions, Prover
from .arithmetic import RULES, apply_binary, opaque
from .values import (
    BIG,
    WORD_BITS,
    AxisInfo,
    broadcast,
    load,
    power_of_two_in,
    select,
    splat,
)

_BINARY: dict[type, str] = {
    tirx.Add: "add",
    tirx.Sub: "sub",
    tirx.Mul: "mul",
    tirx.FloorDiv: "div",
    tirx.FloorMod: "rem",
    tirx.Div: "div",
    tirx.Mod: "rem",
    tirx.Min: "min",
    tirx.Max: "max",
    tirx.BitwiseAnd: "and",
    tirx.BitwiseOr: "or",
    tirx.BitwiseXor: "xor",
    tirx.LShift: "shl",
    tirx.RShift: "shr",
}
_COMPARISONS: dict[type, str] = {
    tirx.LT: "lt",
    tirx.LE: "le",
    tirx.GT: "gt",
    tirx.GE: "ge",
    tirx.EQ: "eq",
    tirx.NE: "ne",
}
_TRUNCATING = (tirx.Div, tirx.Mod)
#: What TVM's analyser raises at a division by the constant 0, and at one by the least number of a
#: type, whose absolute value the type does not hold.
_GIVES_UP = (tvm.error.InternalError, ValueError)
#: What TVM's bounds call infinity, and a number that no type holds.
_LAST_BOUND, _BEYOND = (1 << 63) - 1, 1 << 64


class IndexAnalyzer:
    """Finds axis information of the index expressions of one loop nest.

    ``axes`` are the variables to look along, slowest first; other variables are taken as fixed
    while they run, in their ``ranges``.

    Examples
    --------
    >>> i, j, n = (tirx.Var(name, "int32") for name in "ijn")
    >>> axes = [(i, tvm.ir.Range(0, 32)), (j, tvm.ir.Range(0, 100))]
    >>> told = Assumptions((tirx.EQ(tirx.FloorMod(n, 8), 0),))
    >>> IndexAnalyzer(axes, assumptions=told).info(i * n + j).contiguity
    (1, 8)
    """

    def __init__(
        self,
        axes: Sequence[tuple[Any, tvm.ir.Range]],
        ranges: Mapping[Any, tvm.ir.Range] | None = None,
        assumptions: Assumptions = NO_ASSUMPTIONS,
    ) -> None:
        self._prover = Prover(assumptions.conditions)
        self._analyzer = self._prover.analyzer
        self._known: dict[Any, AxisInfo] = {}
        self._is_exact: dict[Any, bool] = {}
        self._lets: dict[Any, Any] = {}
        for variable, bounds in {**dict(axes), **(ranges or {})}.items():
            self._analyzer.bind(variable, bounds)
        #: The extents, rounded up to powers of two.
        self.shape = tuple(padded(bounds.extent) for _, bounds in axes) or (1,)
        for d, (variable, bounds) in enumerate(axes):
            self._known[variable] = self._along(d, bounds)

    def _along(self, axis: int, bounds: tvm.ir.Range) -> AxisInfo:
        start = self.info(bounds.min)
        ones = [1] * len(self.shape)
        line = [*ones[:axis], self.shape[axis], *ones[axis + 1 :]]
        # Only the run itself begins at 0; along the other axes any value may stand.
        starts = tuple(BIG if d == axis else 1 for d in range(len(line)))
        run = broadcast(AxisInfo(tuple(line), starts, tuple(ones)), line, self.shape)
        if start.constant == 0:
            return run
        return apply_binary("add", start, run, self.shape, "tir")

    def info(self, expression: Any) -> AxisInfo:
        """Describe an expression along the axes; of vectors only what does not vary is known."""
        if not expression.ty.is_scalar():
            return AxisInfo.unknown(len(self.shape))
        return self._within(expression, self._raw(expression))

    # Nodes

    def _raw(self, node: Any) -> AxisInfo:
        kind = type(node)
        if kind in _BINARY:
            return self._binary(_BINARY[kind], node)
        if kind in _COMPARISONS:
            sides = (self.info(node.a), self.info(node.b))
            return apply_binary(_COMPARISONS[kind], *sides, self.shape)
        handler = _HANDLERS.get(kind)
        return handler(self, node) if handler else AxisInfo.unknown(len(self.shape))

    def _binary(self, name: str, node: Any) -> AxisInfo:
        left, right = self.info(node.a), self.info(node.b)
        if not is_integer(node) or (RULES[name].divides and not self._divides(node)):
            return opaque(left, right, self.shape)
        return apply_binary(name, left, right, self.shape, "tir")

    def _divides(self, node: Any) -> bool:
        """Whether a division rounds down, by a positive number."""
        if self._bounds(node.b)[0] <= 0:
            return False
        return not isinstance(node, _TRUNCATING) or self._bounds(node.a)[0] >= 0

    def _constant(self, node: Any) -> AxisInfo:
        return AxisInfo.of_constant(int(node.value), self.shape)

    def _variable(self, node: Any) -> AxisInfo:
        if node in self._known:
            return self._known[node]
        known = self._analyzer.modular_set(node)
        divisor = power_of_two_in(gcd(known.coeff, known.base))
        return splat(AxisInfo.argument(divisor), self.shape)

    def _cast(self, node: Any) -> AxisInfo:
        inside = self.info(node.value)
        if not is_integer(node.value) or (is_bool(node) and not is_bool(node.value)):
            return replace(AxisInfo.unknown(inside.rank), constancy=inside.constancy)
        return inside

    def _select(self, node: Any) -> AxisInfo:
        return self._choice(node.condition, node.true_value, node.false_value)

    def _choice(self, *parts: Any) -> AxisInfo:
        """Choose between two values by a condition, which may differ between elements."""
        condition, left, right = map(self.info, parts)
        if condition.constancy == self.shape:
            return select(condition, left, right, scalar=True)
        found = select(condition, left, right, scalar=False)
        both = min(left.divisor_of_all, right.divisor_of_all)
        return replace(found, divisibility=tuple(max(v, both) for v in found.divisibility))

    def _let(self, node: Any) -> AxisInfo:
        if node.var not in self._lets:
            self._lets[node.var] = node.value
            self._known[node.var] = self.info(node.value)
            if self._exact(node.value):
                # What TVM cannot simplify stays unbound.
                with suppress(*_GIVES_UP):
                    self._analyzer.bind(node.var, node.value, allow_override=True)
        if not self._lets[node.var].same_as(node.value):
            # A second value for one variable, which TIR forbids: what is known is of the first.
            return AxisInfo.unknown(len(self.shape))
        return self.info(node.body)

    def _logic(self, node: Any) -> AxisInfo:
        sides = [self.info(side) for side in ([node.a, node.b] if hasattr(node, "b") else [node.a])]
        return opaque(sides[0], sides[-1], self.shape)

    def _load(self, node: Any) -> AxisInfo:
        """Tell where a load repeats: where all its indices do, but in memory of one thread."""
        if str(node.source.scope()).startswith("local"):
            return AxisInfo.unknown(len(self.shape))
        indices = [self.info(index) for index in node.indices]
        both = reduce(
            lambda a, b: opaque(a, b, self.shape), indices, AxisInfo.of_constant(0, self.shape)
        )
        return load(both)

    def _call(self, node: Any) -> AxisInfo:
        name = getattr(node.op, "name", "")
        if name.endswith("if_then_else"):
            return self._choice(*node.args)
        if name.endswith("likely"):
            return self.info(node.args[0])
        return AxisInfo.unknown(len(self.shape))

    # Types

    def _within(self, node: Any, info: AxisInfo) -> AxisInfo:
        """Keep what survives wrapping to the type's width, if the value may leave its range."""
        if not is_integer(node):
            return replace(AxisInfo.unknown(info.rank), constancy=info.constancy)
        if self._fits(node):
            return info
        low, high = range_of(node)
        if info.constant is not None and not low <= info.constant <= high:
            return replace(AxisInfo.unknown(info.rank), constancy=info.constancy)
        runs = tuple(map(min, info.contiguity, info.divisibility))
        return AxisInfo(runs, info.divisibility, info.constancy, info.constant)

    def _fits(self, node: Any) -> bool:
        """Whether a value surely needs no wrapping to its type's width."""
        name = _BINARY.get(type(node))
        if not isinstance(node, tirx.Cast) and not (name and RULES[name].may_wrap):
            return True
        if not all(map(self._exact, children(node))):
            return False
        low, high = range_of(node)
        if isinstance(node, tirx.LShift):
            # The analyser bounds a shift by its type, as if it could not wrap.
            shift = self.info(node.b).constant
            if shift is None or not 0 <= shift < WORD_BITS:
                return False
            least, most = self._trusted_bounds(node.a)
            return low <= least << shift and most << shift <= high
        least, most = self._trusted_bounds(getattr(node, "value", node))
        return low <= least and most <= high

    def _exact(self, node: Any) -> bool:
        """Whether no part of an expression wraps, so that the analyser's bounds can be trusted."""
        if node not in self._is_exact:
            parts = is_integer(node) and all(map(self._exact, children(node)))
            self._is_exact[node] = parts and self._fits(node)
        return self._is_exact[node]

    def _bounds(self, node: Any) -> tuple[int, int]:
        """Bound a value as its type holds it."""
        return self._trusted_bounds(node) if self._exact(node) else range_of(node)

    def _trusted_bounds(self, node: Any) -> tuple[int, int]:
        """Ask TVM for bounds, which hold where nothing wraps."""
        try:
            found = self._analyzer.const_int_bound(node)
        except _GIVES_UP:
            return -_BEYOND, _BEYOND
        # Bounds at the ends of 64 bits stand for infinity: sums beyond them would wrap, too.
        least = found.min_value if found.min_value > -_LAST_BOUND else -_BEYOND
        most = found.max_value if found.max_value < _LAST_BOUND else _BEYOND
        return least, most


_HANDLERS: dict[type, Callable[[IndexAnalyzer, Any], AxisInfo]] = {
    tirx.IntImm: IndexAnalyzer._constant,
    tirx.Var: IndexAnalyzer._variable,
    tirx.Cast: IndexAnalyzer._cast,
    tirx.Select: IndexAnalyzer._select,
    tirx.Let: IndexAnalyzer._let,
    tirx.And: IndexAnalyzer._logic,
    tirx.Or: IndexAnalyzer._logic,
    tirx.Not: IndexAnalyzer._logic,
    tvm.ir.TensorLoad: IndexAnalyzer._load,
    tvm.ir.Call: IndexAnalyzer._call,
}
