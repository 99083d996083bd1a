"""Indices as sums of multiples: what is equal, what lies apart by a constant, what is aligned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any

from tvm.ir.prim.expr import IntImm, Ramp

from .places import handle

#: Operations that :meth:`Form.apply` folds where both operands are known.
_FOLDED = {
    "FloorDiv": lambda a, b: a // b,
    "FloorMod": lambda a, b: a % b,
    "RShift": lambda a, b: a >> b,
    "BitwiseAnd": lambda a, b: a & b,
}
_BINARY = (
    *_FOLDED, "Div", "Mod", "Min", "Max", "LT", "LE", "GT", "GE", "EQ", "NE", "And", "Or",
    "LShift", "BitwiseOr", "BitwiseXor",
)  # fmt: skip


class _Unknown:
    """A part that may depend on anything, and equals nothing else."""


@dataclass(frozen=True)
class Form:
    """``base`` and the sum of ``terms``: pairs of a part and how often it counts.

    A part is the identity of a variable, an operation with its operands, or unknown.
    """

    base: int
    terms: frozenset[tuple[Any, int]] = frozenset()

    def plus(self, other: Form, times: int = 1) -> Form:
        """Add ``other`` so many times."""
        sums = dict(self.terms)
        for part, count in other.terms:
            sums[part] = sums.get(part, 0) + times * count
        left = frozenset(pair for pair in sums.items() if pair[1])
        return Form(self.base + times * other.base, left)

    def times(self, factor: int) -> Form:
        """Multiply by a number."""
        return Form(0).plus(self, factor)

    @property
    def divisor(self) -> int:
        """What divides all that ``base`` is added to; 0 where there is nothing."""
        return gcd(*(count for _, count in self.terms))

    def uses(self, variable: int) -> bool:
        """Whether a variable takes part, or may."""
        return any(_uses(part, variable) for part, _ in self.terms)

    @property
    def is_known(self) -> bool:
        """Whether equal forms are equal numbers, and others may be told apart."""
        return not self.uses(0)

    def given(self, values: Mapping[int, int]) -> Form:
        """The same with variables that are known."""
        found = Form(self.base)
        for part, count in self.terms:
            found = found.plus(_given(part, values), count)
        return found


def _uses(part: Any, variable: int) -> bool:
    if not isinstance(part, tuple):
        return isinstance(part, _Unknown) or bool(part == variable)
    return any(isinstance(one, Form) and one.uses(variable) for one in part)


def _given(part: Any, values: Mapping[int, int]) -> Form:
    if not isinstance(part, tuple):
        return Form(values[part]) if part in values else _part(part)
    name, *operands = part
    return _apply(name, *(one.given(values) for one in operands))


def _part(part: Any) -> Form:
    return Form(0, frozenset({(part, 1)}))


def _apply(name: Any, *operands: Form) -> Form:
    if name in _FOLDED and not any(one.terms for one in operands):
        left, right = operands
        if right.base:
            return Form(_FOLDED[name](left.base, right.base))
    return _part((name, *operands))


def form_of(
    expr: Any, lane: int, known: Mapping[int, Form], is_constant: Callable[[Any], bool]
) -> Form:
    """Form of an element of an index.

    ``known`` has the variables that were bound; ``is_constant`` says whether loads of a buffer
    always give the same.
    """

    def of(part: Any, lane: int = lane) -> Form:
        return form_of(part, lane, known, is_constant)

    name = type(expr).__name__
    if isinstance(expr, IntImm):
        return Form(int(expr.value))
    if name == "Var":
        number = handle(expr)
        return known.get(number) or _part(number)
    if name == "Broadcast":
        return of(expr.value, 0)
    if isinstance(expr, Ramp):
        return of(expr.base, 0).plus(of(expr.stride, 0), lane)
    if name == "Cast":
        return of(expr.value)
    if name == "Select":
        return _apply(name, of(expr.condition), of(expr.true_value), of(expr.false_value))
    if name == "TensorLoad" and is_constant(expr.source):
        return _apply((name, handle(expr.source)), *map(of, expr.indices))
    if name not in ("Add", "Sub", "Mul", *_BINARY):
        return _part(_Unknown())
    left, right = of(expr.a), of(expr.b)
    if name in ("Add", "Sub"):
        return left.plus(right, 1 if name == "Add" else -1)
    if name == "Mul" and not (left.terms and right.terms):
        return left.times(right.base) if not right.terms else right.times(left.base)
    return _apply(name, left, right)
