"""Keep TVM's flattening away from quotients and remainders of iterators that run backwards.

TVM 0.27's FlattenBuffer writes indices as maps of iterators, and takes a quotient or remainder of
one that is subtracted from a base by a divisor below zero. What comes out is another number unless
the base happens to fit: ``A[(36 - t) % 32]`` becomes ``A[t % -32 * -1]``.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...ir import ops
from ...ir.queries import is_call_of, nodes_in
from ...ir.rebuild import with_accesses
from ..base import function_pass, mapped

_QUOTIENTS = (tirx.FloorDiv, tirx.FloorMod)
#: A cast to the type that a value has. TVM's iterator maps do not look into calls.
_COVER = ops.REINTERPRET


def _runs_backwards(expr: Any, sign: int = 1) -> bool:
    """Whether a sum subtracts anything but numbers."""
    if isinstance(expr, tirx.Add):
        return _runs_backwards(expr.a, sign) or _runs_backwards(expr.b, sign)
    if isinstance(expr, tirx.Sub):
        return _runs_backwards(expr.a, sign) or _runs_backwards(expr.b, -sign)
    if isinstance(expr, tirx.Mul):
        for factor, number in ((expr.a, expr.b), (expr.b, expr.a)):
            if isinstance(number, tirx.IntImm):
                return _runs_backwards(factor, sign if int(number) >= 0 else -sign)
    return sign < 0 and not isinstance(expr, tirx.IntImm)


def _is_cover(expr: Any) -> bool:
    return is_call_of(expr, _COVER) and bool(expr.args[0].ty == expr.ty)


def _cover(node: Any) -> Any:
    if _is_cover(node.a) or not _runs_backwards(node.a):
        return node
    covered = tvm.ir.Call(tvm.ir.Op.get(_COVER), [node.a], ret_ty=node.a.ty)
    return type(node)(covered, node.b)


def _covered(indices: Any) -> list[Any]:
    rules = [(kind, _cover) for kind in _QUOTIENTS]
    return [tvm_ffi.structural_map(index, rules, order="post") for index in indices]


def _show(call: Any) -> Any:
    return call.args[0] if _is_cover(call) else call


@function_pass()
def ProtectReversedIndices(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that keeps TVM's FlattenBuffer from rewriting indices that run backwards.

    It puts the numerator of such a quotient or remainder in a cast to its own type, which no map of
    iterators can hold; :func:`RestoreReversedIndices` takes the cast away.
    """
    quotients = nodes_in(func.body, *_QUOTIENTS)
    if not any(_runs_backwards(one.a) for one in quotients):
        return func

    def covered(buffer: Any, indices: Any) -> tuple[Any, list[Any]] | None:
        runs = (_runs_backwards(one.a) for index in indices for one in nodes_in(index, *_QUOTIENTS))
        return (buffer, _covered(indices)) if any(runs) else None

    body = with_accesses(func.body, covered)
    return func.with_body(body)


@function_pass(calls=[_COVER])
def RestoreReversedIndices(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that undoes :func:`ProtectReversedIndices` once buffers are flat."""
    return mapped(func, (tvm.ir.Call, _show))
