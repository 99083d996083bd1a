"""Let threads reduce values of 8 and 16 bits as words, which lanes exchange by shuffles.

TVM 0.27's LowerThreadAllreduce exchanges others than words and halves through shared memory. Inside
of a warp it has no barrier there, and counts on lanes that go on together, which they need not
since Volta. Results are the same: a step computes what it did, of values cast to and fro.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import tirx

from ...ir import ops
from ...ir.queries import is_call_of, substitute
from ...ir.rebuild import sequence
from ..base import function_pass, mapped

_WORDS = {
    **dict.fromkeys(("int8", "int16"), "int32"),
    **dict.fromkeys(("uint8", "uint16"), "uint32"),
    "bfloat16": "float32",
}


def _wide(value: Any) -> Any:
    word = _WORDS.get(str(value.ty.dtype))
    return value if word is None else tirx.Cast(word, value)


def _step(reducer: Any) -> Any:
    """The same step of words."""
    narrow: dict[Any, Any] = {}

    def words(variables: Sequence[Any]) -> list[Any]:
        made = []
        for var in variables:
            dtype = str(var.ty.dtype)
            made.append(tirx.Var(var.name, _WORDS.get(dtype, dtype)))
            narrow[var] = tirx.Cast(dtype, made[-1]) if dtype in _WORDS else made[-1]
        return made

    sides = [words(side) for side in (reducer.lhs, reducer.rhs)]
    results = [_wide(substitute(one, narrow)) for one in reducer.result]
    return tirx.CommReducer(*sides, results, [_wide(one) for one in reducer.identity_element])


def _by_words(stmt: Any) -> Any:
    call: Any = getattr(stmt.body, "value", None)
    if stmt.attr_key != ops.REDUCE_SCOPE or not is_call_of(call, ops.TVM_THREAD_ALLREDUCE):
        return stmt
    number = int(call.args[0])
    values, condition = call.args[1 : number + 1], call.args[number + 1]
    results, threads = call.args[number + 2 : 2 * number + 2], call.args[2 * number + 2 :]
    if not any(str(one.ty.dtype) in _WORDS for one in values):
        return stmt
    before, after, found = list[Any](), list[Any](), list[Any]()
    for one in results:
        word = _WORDS.get(str(one.ty.dtype))
        if word is None:
            found.append(one)
            continue
        buffer = tirx.decl_buffer((1,), word, f"{one.source.name}_word", scope="local")
        found.append(tirx.BufferLoad(buffer, [0]))
        before.append(tirx.AllocBuffer(buffer))
        cast = tirx.Cast(str(one.ty.dtype), found[-1])
        after.append(tirx.BufferStore(one.source, cast, one.indices))
    args = [call.args[0], *map(_wide, values), condition, *found, *threads]
    made = tirx.Evaluate(tvm.ir.Call(call.op, args, ret_ty=call.ty))
    step = tirx.AttrStmt(_step(stmt.node), stmt.attr_key, stmt.value, made)
    return sequence([*before, step, *after])


@function_pass(calls=[ops.TVM_THREAD_ALLREDUCE])
def WidenReductions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that lets threads reduce values of 8 and 16 bits as words, by shuffles."""
    return mapped(func, (tirx.AttrStmt, _by_words))
