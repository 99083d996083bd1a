"""Batch norms of inference become a scale and a shift, which whatever stands before them fuses."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from .relax_values import NARROW_FLOATS, rewritten


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.BatchNormsAsScales")
class BatchNormsAsScales:
    """Write ``batch_norm`` with known means as ``(x - mean) * (gamma / sqrt(var + eps)) + beta``.

    TVM lowers it to a function of three results, which no convolution takes as its epilogue. What
    is one value a channel is computed by itself: of constants it is folded. One of 16 bits is
    computed in ``float32`` and rounded once, as PyTorch does. TVM's
    ``DecomposeOpsForInference`` does so for training, too, where means are the batch's; that is
    left alone here.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        # What a tuple holds, or another name stands for, is stored: no kernel fuses it.
        return relax.transform.CanonicalizeBindings()(rewritten(mod, _Scale))


@mutator
class _Scale(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if call.op != tvm.ir.Op.get("relax.nn.batch_norm") or call.attrs.training:
            return call
        x = call.args[0]
        rank, axis = int(x.ty.ndim), int(call.attrs.axis)
        if rank < 0:
            return call
        behind = list(range(1, rank - axis % rank))
        op, emit = relax.op, self.builder_.emit

        def along(one: relax.Expr) -> relax.Expr:
            return emit(op.expand_dims(one, behind)) if behind else one

        wide, gamma, beta, mean, var = (self._wide(one) for one in call.args)
        epsilon = relax.const(float(call.attrs.epsilon), var.ty.dtype)
        scale = emit(op.sqrt(emit(op.add(var, epsilon))))
        scale = emit(op.divide(gamma if call.attrs.scale else op.ones_like(scale), scale))
        y = emit(op.multiply(emit(op.subtract(wide, along(mean))), along(scale)))
        if call.attrs.center:
            y = emit(op.add(y, along(beta)))
        if not wide.same_as(x):
            y = emit(op.astype(y, x.ty.dtype))
        return relax.Tuple([y, *call.args[3:]])

    def _wide(self, value: Any) -> Any:
        """A value in 32 bits, if it has 16."""
        is_narrow = str(value.ty.dtype) in NARROW_FLOATS
        return self.builder_.emit(relax.op.astype(value, "float32")) if is_narrow else value
