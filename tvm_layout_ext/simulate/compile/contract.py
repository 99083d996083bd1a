"""Products that nvcc joins with a sum: one operation, which rounds once.

The rules were read off SASS of CUDA 13.0 for ``sm_90a`` and ``sm_80``, by TVM's options. Joined are
products that are operands of a sum or difference in the same expression, or by a variable that only
sums use. Of two products the left one is joined. Fast math makes of a float32 quotient a product by
a reciprocal, which is joined as well. Types are float64, float32, float16, and bfloat16 from
``sm_90`` on.

Not joined, though nvcc may: products that come to their sum by way of a local array.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
from tvm import tirx
from tvm.ir.prim.expr import Broadcast, FloatImm

from ...ir.queries import nodes_in, variables
from ..model.code import Code, lift
from ..model.places import handle
from ..model.values import numpy_type
from .expressions import ExpressionCompiler, Kept
from .fma import TYPES, fused

#: Since ``sm_90`` products of bfloat16 have an instruction of their own.
_BFLOAT16_SINCE = 90


class ContractingCompiler(ExpressionCompiler):
    """Compiles expressions of a device function with products and sums joined."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        has_bfloat16 = _architecture(function) >= _BFLOAT16_SINCE
        self._types = [one for one in TYPES if has_bfloat16 or one != ml_dtypes.bfloat16]
        #: Variables of products that only sums use; and the factors of those that were met.
        self._summed = _summed(function.body)
        self._factors_of: dict[int, tuple[Code, Code]] = {}

    def bind(self, var: Any, value: Any) -> list[Kept]:
        """Give a variable a value, a product by its factors if sums will have it."""
        if handle(var) not in self._summed:
            return super().bind(var, value)
        first, second = (self.kept(code) for code in self._factors(value))
        self._factors_of[handle(var)] = first[0], second[0]
        self.scope[handle(var)] = lift(np.multiply, first[0], second[0])
        return first[1] + second[1]

    def arithmetic(self, expr: Any) -> Code:
        """Compile an operator, with a product that is an operand of a sum."""
        if not isinstance(expr, tirx.Add | tirx.Sub) or numpy_type(expr)[0] not in self._types:
            return super().arithmetic(expr)
        join, minus = fused(numpy_type(expr)[0]), isinstance(expr, tirx.Sub)
        if self._is_product(expr.a):
            codes = self.together(*self._factors(expr.a), self._rounded(expr.b))
            return lift((lambda x, y, c: join(x, y, -c)) if minus else join, *codes)
        if self._is_product(expr.b):
            codes = self.together(self.expr(expr.a), *self._factors(expr.b))
            return lift(lambda c, x, y: join(-x if minus else x, y, c), *codes)
        return super().arithmetic(expr)

    def _is_product(self, expr: Any) -> bool:
        if isinstance(expr, Broadcast):
            return self._is_product(expr.value)
        return _is_product(expr) or handle(expr) in self._factors_of

    def _factors(self, expr: Any) -> tuple[Code, Code]:
        """Compile both factors of a product."""
        if isinstance(expr, Broadcast):
            first, second = self._factors(expr.value)
            return lift(_as_vector, first), lift(_as_vector, second)
        if handle(expr) in self._factors_of:
            return self._factors_of[handle(expr)]
        if isinstance(expr, tirx.Div):
            return self.expr(expr.a), lift(np.reciprocal, self.expr(expr.b))
        if _is_minus_one(expr.b) and self._is_product(expr.a):
            first, second = self._factors(expr.a)
            return lift(np.negative, first), second
        return self.expr(expr.a), self.expr(expr.b)

    def _rounded(self, expr: Any) -> Code:
        """Compile an operand; a quotient is a product here as well."""
        if self._is_product(expr):
            return lift(np.multiply, *self.together(*self._factors(expr)))
        return self.expr(expr)


def _architecture(function: Any) -> int:
    """90 of ``sm_90a``, or 0."""
    target = function.attrs.get("target")
    arch = "" if target is None else str(target.attrs.get("arch", ""))
    return int("".join(filter(str.isdigit, arch)) or 0)


def _as_vector(value: Any) -> Any:
    return np.asarray(value).reshape(1, -1)


def _is_product(expr: Any) -> bool:
    if isinstance(expr, tirx.Mul):
        return numpy_type(expr)[0] in TYPES
    return isinstance(expr, tirx.Div) and numpy_type(expr)[0] == np.float32


def _is_minus_one(expr: Any) -> bool:
    number = expr.value if isinstance(expr, Broadcast) else expr
    return isinstance(number, FloatImm) and number.value == -1


def _summed(body: Any) -> frozenset[int]:
    """Variables of products that are used as operands of sums and differences alone."""
    bound = [b.var for b in nodes_in(body, tirx.Bind, tirx.Let) if _is_product(b.value)]
    if not bound:
        return frozenset()
    sums = nodes_in(body, tirx.Add, tirx.Sub)
    in_sums = Counter(handle(side) for one in sums for side in (one.a, one.b))
    uses = Counter(map(handle, variables(body)))
    # The binding counts as one.
    return frozenset(var for var in map(handle, bound) if uses[var] == in_sums[var] + 1)
