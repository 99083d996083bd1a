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
    whole, left = _apart(node.a, divisor)
    if not _is_below(left, divisor, analyzer):
        return node
    return left if isinstance(node, tirx.FloorMod) else whole


def _apart(expr: Any, divisor: Any) -> tuple[Any, Any]:
    """How many times an expression has a divisor, and what it has beside."""
    whole, rest = [], []
    for term in _terms(expr):
        times = _without(_factors(term), divisor)
        if times is None:
            rest.append(term)
        else:
            whole.append(reduce(mul, times, tirx.IntImm(str(expr.ty), 1)))
    zero = tirx.IntImm(str(expr.ty), 0)
    return reduce(add, whole, zero), reduce(add, rest, zero)


def _is_below(expr: Any, end: Any, analyzer: Any) -> bool:
    """Whether an expression is proven to be from zero to below an end.

    ``i * n + j`` is below ``m * n`` where ``j`` is below ``n`` and ``i`` below ``m``.
    """
    if analyzer.can_prove(expr >= 0) and analyzer.can_prove(expr < end):
        return True
    factors = _factors(end)
    for at, one in enumerate(factors if len(factors) > 1 else ()):
        whole, left = _apart(expr, one)
        others = reduce(mul, [*factors[:at], *factors[at + 1 :]])
        if _is_below(left, one, analyzer) and _is_below(whole, others, analyzer):
            return True
    return False


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
