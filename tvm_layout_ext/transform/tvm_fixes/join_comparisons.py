"""Compute both sides of what ``argmax`` asks of two registers.

For ``a or b`` TVM writes ``a || b``, and nvcc 13.0 makes a branch of each where the answer chooses
a value, as the maximum with the lower index of two. Lanes part ways by what they have loaded:
``argmax`` of 588x32x2752 bytes along the first axis had 88 branches, and 0.20 of a read's speed.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...ir import ops
from ...ir.contents import contents
from ...ir.queries import is_call_of, loads_in
from ..base import function_pass, has_call, mapped

_BITWISE = {tirx.And: tirx.BitwiseAnd, tirx.Or: tirx.BitwiseOr}


def _both(condition: Any) -> Any:
    """Join comparisons of registers by bits; others may be there to keep a load from being done."""
    loads = loads_in(condition)
    if not loads or any(load.source.scope() != "local" for load in loads):
        return condition
    rules = [(kind, lambda node, to=to: to(node.a, node.b)) for kind, to in _BITWISE.items()]
    return tvm_ffi.structural_map(condition, rules, order="post")


def _select(node: Any) -> Any:
    return tirx.Select(_both(node.condition), node.true_value, node.false_value)


def _choice(node: Any) -> Any:
    if not is_call_of(node, ops.CHOICE):
        return node
    condition, *values = node.args
    return tirx.if_then_else(_both(condition), *values)


@function_pass()
def JoinComparisons(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that chooses between registers by several comparisons without branches."""
    if not contents(func.body).nodes(tirx.Select) and not has_call(func, [ops.CHOICE]):
        return func
    return mapped(func, (tirx.Select, _select), (tvm.ir.Call, _choice))
