"""Indices of what is loaded under a condition, as they are where the condition holds."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import tvm
import tvm_ffi
from tvm import sym, tirx

from .conditions import conjuncts
from .ops import CHOICE
from .queries import is_call_of, nodes_in

_QUOTIENTS = (tirx.FloorDiv, tirx.FloorMod)


def under_guards(value: Any, analyzer: sym.Analyzer) -> Any:
    """An expression whose loads have fewer quotients where their conditions say that they may.

    Of what is reshaped and then padded an index is ``(i - 1) // 1568 % 2``, where ``i`` is between
    1 and 1568, which nothing but the condition says.

    Examples
    --------
    >>> i, b = tirx.Var("i", "int32"), tirx.decl_buffer((9, 8), "float32", "B", layout=None)
    >>> analyzer = sym.Analyzer()
    >>> analyzer.bind(i, tvm.ir.Range(0, 9))
    >>> under_guards(tirx.if_then_else(i >= 1, b[(i - 1) // 8, i], 0.0), analyzer)
    T.if_then_else(i >= 1, B[0, i], T.float32(0.0))
    """

    def load(one: Any) -> Any:
        indices = [_shorter(index, analyzer.simplify(index)) for index in one.indices]
        return tirx.BufferLoad(one.source, indices)

    def choice(call: Any) -> Any:
        if not is_call_of(call, CHOICE):
            return call
        condition, value, other = call.args
        with ExitStack() as scopes:
            for part in conjuncts(condition):
                scopes.enter_context(analyzer.constraint_scope(part))
            found = tvm_ffi.structural_map(value, [(tvm.ir.TensorLoad, load)], order="post")
        return tirx.if_then_else(condition, found, other)

    return tvm_ffi.structural_map(value, [(tvm.ir.Call, choice)], order="post")


def _shorter(index: Any, simple: Any) -> Any:
    """Of two forms of an index the one of fewer quotients, or the first."""
    count = [len(nodes_in(one, *_QUOTIENTS)) for one in (simple, index)]
    return simple if count[0] < count[1] else index
