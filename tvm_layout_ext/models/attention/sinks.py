"""Softmaxes of scores beside a sink become weights whose sum has the sink's power, too."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...ir.queries import size_of
from ..relax_values import (
    bound_to,
    extents_of,
    has_shape,
    name_of,
    operators_of,
    rewritten,
    slices_of,
    source_of,
)


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.SinksApart")
class SinksApart:
    """Take a sink of attention out of the scores that it is put behind, as GPT-OSS has it.

    ::

        # before                              # after
        W = softmax(concat(S, sink))[:-1]     top = max(max(S), sink); P = exp(S - top)
                                              W = P / (sum(P) + exp(sink - top))
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        if not operators_of(mod) >= {"nn.softmax", "concat"}:
            return mod
        # What is left of the old softmax would read scores, too.
        return relax.transform.DeadCodeElimination()(rewritten(mod, _Apart))


@mutator
class _Apart(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        parts = self._parts(call) if name_of(call) == "strided_slice" else None
        if parts is None:
            return call
        emit, dtype = self.builder_.emit, call.ty.dtype
        scores, sink = (emit(op.astype(one, "float32")) for one in parts)
        top = emit(op.maximum(emit(op.max(scores, -1, keepdims=True)), sink))
        powers = emit(op.exp(emit(op.subtract(scores, top))))
        beside = emit(op.exp(emit(op.subtract(sink, top))))
        whole = emit(op.add(emit(op.sum(powers, -1, keepdims=True)), beside))
        return op.astype(emit(op.divide(powers, whole)), dtype)

    def _parts(self, call: relax.Call) -> tuple[Any, Any] | None:
        """Scores and the sink behind them, where a slice has the weights of the scores."""
        softmax = self._call(call.args[0])
        if name_of(softmax) != "nn.softmax" or not _is_last(softmax):
            return None
        joined = self._call(self._unshifted(softmax.args[0]))
        if name_of(joined) != "concat" or not _is_last(joined):
            return None
        parts, numbers = [*self._call(joined.args[0]).fields], slices_of(call)
        if len(parts) != 2 or numbers is None or any(numbers[1]) or numbers[3:] not in ([], [[1]]):
            return None
        scores, sink = parts
        if not has_shape(call, extents_of(scores)) or size_of((extents_of(sink) or [0])[-1]) != 1:
            return None
        return scores, source_of(sink, ("broadcast_to",), self._call)

    def _unshifted(self, value: Any) -> Any:
        """Scores before the same was taken off all of a row, as its maximum, and before casts."""
        value = source_of(value, ("astype",), self._call)
        call = self._call(value)
        if name_of(call) == "subtract" and has_shape(call, extents_of(call.args[0])):
            taken = (extents_of(call.args[1]) or (None,))[-1]
            if isinstance(taken, tvm.tirx.IntImm) and int(taken) == 1:
                return self._unshifted(call.args[0])
        return value

    def _call(self, value: Any) -> Any:
        return bound_to(value, self.lookup_binding)


def _is_last(call: relax.Call) -> bool:
    """Whether an operator goes along the last dim."""
    return int(call.attrs.axis) % int(call.ty.ndim) == int(call.ty.ndim) - 1
