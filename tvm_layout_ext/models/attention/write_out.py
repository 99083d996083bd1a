"""Attention without a kernel becomes two products and a softmax, which have kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...ir.queries import size_of
from ..relax_values import NARROW_FLOATS, extents_of, name_of, rewritten
from .gather import OPERATORS

#: What binds a value to a variable.
Emit = Callable[[Any], Any]


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.WriteOutAttention")
class WriteOutAttention:
    """Write operators of attention of 16 bits, of which there is no kernel, as products.

    TVM lowers them to one function, whose products are added up in 16 bits and whose softmax is
    rounded at each step; and ``bfloat16`` has no such product on tensor cores. Here sums are of
    ``float32``. Scores are stored in 16 bits, as PyTorch stores them.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        return rewritten(mod, _WriteOut)


@mutator
class _WriteOut(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if name_of(call) not in OPERATORS or call.attrs.window_size is not None:
            return call
        q, k, v, *bias = call.args
        dtype, shape, kept = str(q.ty.dtype), extents_of(q), extents_of(k)
        if dtype not in NARROW_FLOATS or shape is None or kept is None:
            return call
        (_, rows, _, size), keys = shape, kept[1]
        first = _first_hidden(str(call.attrs.causal_mask or ""), size_of(rows), size_of(keys))
        if first is None:
            return call
        emit = self.builder_.emit
        added = [*bias]
        if first:
            hidden = op.full((rows, keys), relax.const(np.finfo("float32").min), "float32")
            added.append(emit(op.triu(emit(hidden), first)))
        heads = [emit(op.permute_dims(one, (0, 2, 1, 3))) for one in (q, k, v)]
        scale = call.attrs.scale
        scale = int(size) ** -0.5 if scale is None else float(scale.value)
        scores = scores_of(emit, heads, scale, added)
        weights = emit(op.nn.softmax(emit(op.astype(scores, dtype))))
        means = emit(op.astype(emit(op.matmul(weights, heads[2], out_dtype="float32")), dtype))
        return op.permute_dims(means, (0, 2, 1, 3))


def scores_of(emit: Emit, heads: Sequence[Any], scale: float, added: Sequence[Any]) -> Any:
    """Scores in ``float32`` of Q and K by batch, head, place and element; V may stand behind."""
    # The product reads it so, as it does weights.
    turned = emit(op.permute_dims(heads[1], (0, 1, 3, 2)))
    scores = emit(op.matmul(heads[0], turned, out_dtype="float32"))
    scores = emit(op.multiply(scores, relax.const(scale, "float32")))
    for one in added:
        wide = str(one.ty.dtype) == "float32"
        scores = emit(op.add(scores, one if wide else emit(op.astype(one, "float32"))))
    return scores


def safe_softmax(emit: Emit, scores: Any) -> Any:
    """A softmax along rows of ``float32``, of which those without a key are 0, as torch has them.

    A row that sees a key has a sum of one at least: its highest score adds exp(0).
    """
    lowest = relax.const(np.finfo("float32").min, "float32")
    highest = emit(op.maximum(emit(op.max(scores, -1, keepdims=True)), lowest))
    parts = emit(op.exp(emit(op.subtract(scores, highest))))
    whole = emit(op.sum(parts, -1, keepdims=True))
    return emit(op.divide(parts, emit(op.maximum(whole, relax.const(1.0, "float32")))))


def _first_hidden(causal: str, rows: Any, keys: Any) -> int | None:
    """How far behind a row's own place the first hidden key is; 0 for none, None if not known."""
    if causal == "BottomRight":
        known = isinstance(rows, int) and isinstance(keys, int) and rows <= keys
        return 1 + keys - rows if known else None
    return {"": 0, "TopLeft": 1}.get(causal)
