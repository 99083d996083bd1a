"""Whole tensors of symbolic sizes are added up in two steps: their rows, then what is left."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...ir.queries import size_of
from ..relax_values import NARROW_FLOATS, extents_of, name_of, rewritten

_REDUCTIONS = {
    name: getattr(relax.op, name) for name in ("max", "min", "sum", "prod", "mean")
}  # fmt: skip


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.SumsInSteps")
class SumsInSteps:
    """Reduce the dims behind the last symbolic one first, or the last, and then what is left.

    T5 of ``float16`` looks so for infinite values. As a sum of several symbolic axes, which no
    threads can share out, it is a loop of a single thread; so rows are blocks' and what they leave
    is one block's. Sums and means of 16 bits are computed in ``float32`` and rounded once.
    Neighbouring axes, as height and width, are made one where more than the slowest of them are
    symbolic: a block adds them up then, where it was a single thread.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        return rewritten(mod, _Steps)


@mutator
class _Steps(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        reduce = _REDUCTIONS.get(name_of(call) or "")
        sizes = None if reduce is None else extents_of(call.args[0])
        if reduce is None or sizes is None or len(sizes) < 2:
            return call
        axes = call.attrs.axis
        symbolic = [at for at, n in enumerate(sizes) if not isinstance(size_of(n), int)]
        if not symbolic:
            return call
        if axes is not None and len(set(axes)) < len(sizes):
            return self._as_one_axis(call, reduce, sizes)
        value, emit = call.args[0], self.builder_.emit
        kind = str(call.ty.dtype)
        if name_of(call) == "mean" and "float" not in kind:
            return call  # A mean of cut off ones is another.
        is_rounded = kind in NARROW_FLOATS and name_of(call) not in ("max", "min")
        if is_rounded:
            value = emit(relax.op.astype(value, "float32"))
        last = min(symbolic[-1] + 1, len(sizes) - 1)
        value = emit(reduce(value, axis=[*range(last, len(sizes))]))
        left = emit(relax.op.reshape(value, [prod(sizes[:last])]))
        left = emit(reduce(left, axis=[0]))
        left = emit(relax.op.reshape(left, call.ty.shape)) if call.ty.ndim else left
        return relax.op.astype(left, kind) if is_rounded else left

    def _as_one_axis(self, call: relax.Call, reduce: Any, sizes: Sequence[Any]) -> relax.Expr:
        """A sum of neighbouring axes as that of the one axis of a view, which threads share out."""
        axes = sorted({int(axis) % len(sizes) for axis in call.attrs.axis})
        first, end = axes[0], axes[-1] + 1
        known = [isinstance(size_of(sizes[axis]), int) for axis in axes[1:]]
        if axes != list(range(first, end)) or all(known):
            return call
        view = [*sizes[:first], prod(sizes[first:end]), *sizes[end:]]
        value = self.builder_.emit(relax.op.reshape(call.args[0], view))
        left = reduce(value, axis=[first])
        if not call.attrs.keepdims:
            return left
        return relax.op.reshape(self.builder_.emit(left), call.ty.shape)
