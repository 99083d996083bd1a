"""Divide places by symbolic sizes as numbers that are never negative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm_ffi
from tvm import tirx

from ...ir.queries import distinct, nodes_in
from ..base import function_pass


@function_pass()
def DividePlaces(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that divides places by symbolic sizes without a correction of the sign.

    ::

        i // n   ->   i / n        where i counts from 0 and n is a size

    TVM 0.27 does not know that sizes and numbers of threads are not negative, and corrects each
    quotient by six operations. A size of 0 has no iteration that divides by it.

    Leaves alone: quotients of what may be negative, as differences, and by numbers.
    """
    extents = [extent for param in func.params for extent in getattr(param, "shape", ())]
    # Of n + m one may be negative.
    places = [extent for extent in extents if isinstance(extent, tirx.Var)]
    for node in nodes_in(func.body, tirx.For, tirx.AttrStmt):
        if isinstance(node, tirx.For) and isinstance(node.min, tirx.IntImm) and node.min >= 0:
            places.append(node.loop_var)
        elif isinstance(node, tirx.AttrStmt) and node.attr_key == "thread_extent":
            places.append(node.node.var)
    found = {var.__chandle__() for var in distinct(places)}

    def counts(var: Any) -> bool:
        return var.__chandle__() in found

    def is_size(expr: Any) -> bool:
        return _is_place(expr, counts, is_size)

    body = divided(func.body, counts, is_size)
    return func if body.same_as(func.body) else func.with_body(body)


def divided(
    stmt: Any, counts: Callable[[Any], bool], is_size: Callable[[Any], bool] = lambda _: True
) -> Any:
    """A statement with places divided so.

    ``counts`` tells variables that are never negative, and ``is_size`` divisors, by default all.
    """

    def rule(node: Any) -> Any:
        is_number = isinstance(node.b, tirx.IntImm)
        if is_number or not _is_place(node.a, counts, is_size) or not is_size(node.b):
            return node
        how = tirx.truncdiv if isinstance(node, tirx.FloorDiv) else tirx.truncmod
        return how(node.a, node.b)

    rules = [(tirx.FloorDiv, rule), (tirx.FloorMod, rule)]
    return tvm_ffi.structural_map(stmt, rules, order="post")


def _is_place(expr: Any, counts: Callable[[Any], bool], is_size: Callable[[Any], bool]) -> bool:
    """Whether an expression is never negative, as numbers of blocks, heads and rows are not."""
    if isinstance(expr, tirx.IntImm):
        return int(expr) >= 0
    if isinstance(expr, tirx.Cast):
        return _is_place(expr.value, counts, is_size)
    if isinstance(expr, tirx.Add | tirx.Mul | tirx.Min):
        return all(_is_place(one, counts, is_size) for one in (expr.a, expr.b))
    if isinstance(expr, tirx.Max):
        return any(_is_place(one, counts, is_size) for one in (expr.a, expr.b))
    if isinstance(expr, tirx.FloorDiv | tirx.FloorMod | tirx.Div | tirx.Mod):
        return _is_place(expr.a, counts, is_size) and is_size(expr.b)
    return isinstance(expr, tirx.Var) and counts(expr)
