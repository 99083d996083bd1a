"""Taking conditions apart, and what expressions are for certain."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from .ops import CHOICE, LIKELY
from .queries import (
    COMPARISONS,
    depends_on,
    is_call_of,
    is_global,
    loads_in,
    nodes_in,
    substitute,
    uses,
)

#: TVM rounds signed quotients down by a comparison.
_ROUNDED = (tirx.FloorDiv, tirx.FloorMod)


def conjuncts(condition: Any) -> list[Any]:
    """Parts of a condition that must all hold, without TVM's ``likely`` around them."""
    if isinstance(condition, tirx.And):
        return [*conjuncts(condition.a), *conjuncts(condition.b)]
    if is_call_of(condition, LIKELY):
        return conjuncts(condition.args[0])
    return [condition]


def choice_parts(value: Any) -> tuple[Any, Any, Any] | None:
    """Condition and both values of a ``Select`` or ``if_then_else``, None of anything else."""
    if isinstance(value, tirx.Select):
        return value.condition, value.true_value, value.false_value
    return tuple(value.args) if is_call_of(value, CHOICE) else None


def loads_with_conditions(value: Any) -> list[tuple[Any, tuple[Any, ...]]]:
    """List the loads of an expression or statement, each with all that must hold for it to be done.

    Examples
    --------
    >>> i = tirx.Var("i", "int32")
    >>> b = tirx.decl_buffer((8,), "float32", "B", layout=None)
    >>> loads_with_conditions(tirx.if_then_else(i < 4, b[i], b[0]))
    [(B[i], (i < 4,)), (B[0], (not i < 4,))]
    """
    found: list[tuple[Any, tuple[Any, ...]]] = []

    def read(node: Any, held: tuple[Any, ...]) -> None:
        def choice(node: Any) -> Any:
            parts = choice_parts(node)
            if parts is None:
                return None
            condition, taken, other = parts
            read(condition, held)
            read(taken, (*held, condition))
            read(other, (*held, tirx.Not(condition)))
            return tvm_ffi.WalkResult.SKIP

        def branches(node: Any) -> Any:
            read(node.condition, held)
            read(node.then_case, (*held, node.condition))
            if node.else_case is not None:
                read(node.else_case, (*held, tirx.Not(node.condition)))
            return tvm_ffi.WalkResult.SKIP

        def both(node: Any) -> Any:
            first = node.a if isinstance(node, tirx.And) else tirx.Not(node.a)
            read(node.a, held)
            read(node.b, (*held, first))
            return tvm_ffi.WalkResult.SKIP

        def load(node: Any) -> None:
            found.append((node, held))

        choices = [(kind, choice) for kind in (tvm.ir.Call, tirx.Select)]
        joined = [(tirx.And, both), (tirx.Or, both), (tirx.IfThenElse, branches)]
        rules = [*choices, *joined, (tvm.ir.TensorLoad, load)]
        tvm_ffi.structural_walk(node, rules, order="pre")

    read(value, ())
    return found


def analyzer_of(ranges: Iterable[tuple[Any, Any]]) -> Any:
    """An analyzer that knows the ranges of some variables, or the extents of those from 0 on."""
    analyzer = tvm.sym.Analyzer()
    for var, own in ranges:
        is_range = isinstance(own, tvm.ir.Range)
        analyzer.bind(var, own if is_range else tvm.ir.Range.from_min_extent(0, own))
    return analyzer


def range_of(loop: Any) -> tuple[Any, Any]:
    """The variable of a loop and its range."""
    return loop.loop_var, tvm.ir.Range.from_min_extent(loop.min, loop.extent)


def ranges_known(body: Any) -> Any:
    """An analyzer that knows the range of every loop and thread of a statement."""
    threads = ("thread_extent", "virtual_thread")
    starts = (one for one in nodes_in(body, tirx.AttrStmt) if one.attr_key in threads)
    loops = map(range_of, nodes_in(body, tirx.For))
    return analyzer_of([*loops, *((one.node.var, one.value) for one in starts)])


def is_zero(value: Any) -> bool:
    """Whether an expression is the number 0, also cast, or in every lane of a vector."""
    while isinstance(value, tirx.Cast | tirx.Broadcast):
        value = value.value
    return isinstance(value, tirx.IntImm | tirx.FloatImm) and bool(value.value == 0)


def step_of(value: Any, var: Any, analyzer: Any = None) -> int | None:
    """By how much one step of a variable moves a value; None where that is no one number."""
    known = analyzer or tvm.sym.Analyzer()
    step = known.simplify(substitute(value, {var: var + 1}) - value)
    return int(step) if isinstance(step, tirx.IntImm) else None


def same_at_ends(condition: Any, var: Any, lanes: int) -> bool:
    """Whether a condition is proven the same from each multiple of some lanes to the next one.

    Comparisons of what goes up or down with the variable are, if they are at both ends.
    """
    if isinstance(condition, tirx.Not):
        return same_at_ends(condition.a, var, lanes)
    if isinstance(condition, tirx.And | tirx.Or):
        return all(same_at_ends(part, var, lanes) for part in (condition.a, condition.b))
    if not isinstance(condition, tirx.LT | tirx.LE | tirx.GT | tirx.GE):
        return not depends_on(condition, var)
    analyzer = tvm.sym.Analyzer()
    if step_of(condition.a - condition.b, var) is None:
        return False
    group = tirx.Var("group", var.ty)
    first, last = (
        analyzer.simplify(substitute(condition, {var: group * lanes + lane}))
        for lane in (0, lanes - 1)
    )
    return bool(tvm_ffi.structural_equal(first, last))


def compares_values(body: Any) -> bool:
    """Whether a statement selects, or compares or rounds what it loads: vectors of truth values."""
    quotients = nodes_in(body, *_ROUNDED)
    rounded = [one for one in quotients if not str(one.ty).startswith("uint")]
    compared = [*nodes_in(body, *COMPARISONS), *rounded]
    return bool(nodes_in(body, tirx.Select)) or any(map(loads_in, compared))


def selects_as_choices(node: Any) -> Any:
    """Write ``Select`` of loads from global memory by indices alone as ``if_then_else``.

    A scalar ``Select`` loads in CUDA code only what it takes, a vector of them all of both sides. A
    condition that asks a name of a ``let`` statement is left alone: it may be a loaded value.
    """
    bound = [bind.var for bind in nodes_in(node, tirx.Bind)]

    def choice(select: Any) -> Any:
        loads = [*loads_in(select.true_value), *loads_in(select.false_value)]
        if not any(is_global(load.source) for load in loads):
            return select
        if loads_in(select.condition) or any(uses(select.condition, var) for var in bound):
            return select
        return tirx.if_then_else(select.condition, select.true_value, select.false_value)

    return tvm_ffi.structural_map(node, [(tirx.Select, choice)], order="post")
