"""Divide places by symbolic sizes as numbers that are never negative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm_ffi
from tvm import tirx

from ...ir.queries import distinct, is_among, nodes_in
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
        if isinstance(node, tirx.For) and _is_place(node.min, lambda var: is_among(var, places)):
            places.append(node.loop_var)
        elif isinstance(node, tirx.AttrStmt) and node.attr_key == "thread_extent":
            places.append(node.node.var)
    found = {var.__chandle__() for var in distinct(places)}
    body = divided(func.body, lambda var: var.__chandle__() in found)
    return func if body.same_as(func.body) else func.with_body(body)


def divided(stmt: Any, counts: Callable[[Any], bool]) -> Any:
    """A statement with places divided so; ``counts`` tells variables that are never negative."""

    def rule(node: Any) -> Any:
        is_number = isinstance(node.b, tirx.IntImm)
        if is_number or not _is_place(node.a, counts) or not _is_place(node.b, counts):
            return node
        how = tirx.truncdiv if isinstance(node, tirx.FloorDiv) else tirx.truncmod
        return how(node.a, node.b)

    rules = [(tirx.FloorDiv, rule), (tirx.FloorMod, rule)]
    return tvm_ffi.structural_map(stmt, rules, order="post")


def _is_place(expr: Any, counts: Callable[[Any], bool]) -> bool:
    """Whether an expression is never negative, as numbers of blocks, heads and rows are not."""
    if isinstance(expr, tirx.IntImm):
        return int(expr) >= 0
    if isinstance(expr, tirx.Cast):
        return _is_place(expr.value, counts)
    if isinstance(expr, tirx.Add | tirx.Mul | tirx.Min):
        return _is_place(expr.a, counts) and _is_place(expr.b, counts)
    if isinstance(expr, tirx.Max):
        return _is_place(expr.a, counts) or _is_place(expr.b, counts)
    if isinstance(expr, tirx.FloorDiv | tirx.FloorMod | tirx.Div | tirx.Mod):
        return _is_place(expr.a, counts) and _is_place(expr.b, counts)
    return isinstance(expr, tirx.Var) and counts(expr)
