"""Quotients and remainders by extents that are symbolic, as reshapes of TVM's operators have them.

TVM 0.27 keeps ``(i * n + j) % n``: it does not ask whether ``j`` is below ``n``.
"""

from __future__ import annotations

from functools import reduce
from operator import add, mul
from typing import Any

import tvm_ffi
from tvm import tirx

_QUOTIENTS = (tirx.FloorDiv, tirx.FloorMod)


def simplified(index: Any, analyzer: Any) -> Any:
    """Simplify an index by what an analyzer knows, also where it is divided by symbolic extents.

    ``(i * n + j) // n`` is ``i``, and ``(i * n + j) % n`` is ``j``, where ``0 <= j < n``.
    """

    def plain(node: Any) -> Any:
        return _divided(node, analyzer)

    # What a division leaves may be divided again.
    found = analyzer.simplify(index)
    while True:
        rules = [(kind, plain) for kind in _QUOTIENTS]
        following = tvm_ffi.structural_map(found, rules, order="post")
        if following.same_as(found):
            return found
        found = analyzer.simplify(following)


def _divided(node: Any, analyzer: Any) -> Any:
    """A quotient or remainder whose divisor is symbolic, in fewer words if that is proven."""
    divisor = node.b
    if isinstance(divisor, tirx.IntImm):
        return node
    zero = tirx.IntImm(str(node.ty), 0)
    whole, rest = [], []
    for term in _terms(node.a):
        times = _without(_factors(term), divisor)
        if times is None:
            rest.append(term)
        else:
            whole.append(reduce(mul, times, tirx.IntImm(str(node.ty), 1)))
    left = reduce(add, rest, zero)
    if not (analyzer.can_prove(left >= 0) and analyzer.can_prove(left < divisor)):
        return node
    return left if isinstance(node, tirx.FloorMod) else reduce(add, whole, zero)


def _terms(expr: Any) -> list[Any]:
    return [*_terms(expr.a), *_terms(expr.b)] if isinstance(expr, tirx.Add) else [expr]


def _factors(expr: Any) -> list[Any]:
    return [*_factors(expr.a), *_factors(expr.b)] if isinstance(expr, tirx.Mul) else [expr]


def _without(factors: list[Any], divisor: Any) -> list[Any] | None:
    """Factors but for one that is the divisor; None where none is."""
    for at, one in enumerate(factors):
        if tvm_ffi.structural_equal(one, divisor):
            return [*factors[:at], *factors[at + 1 :]]
    return None
