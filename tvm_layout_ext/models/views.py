"""Permutations that leave all elements where they are become reshapes, which cost nothing."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.PermutationsAsViews")
class PermutationsAsViews:
    """Make a reshape of each ``permute_dims`` of dims of extent 1, and one of several."""

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        return rewritten(mod, _PermutationRewriter)


def rewritten(mod: tvm.IRModule, kind: Any) -> tvm.IRModule:
    """A module whose Relax functions a mutator has rewritten."""
    one = kind(mod)
    for gv, func in mod.functions_items():
        if isinstance(func, relax.Function):
            one.builder_.update_func(gv, one.visit_expr(func))
    return one.builder_.get()


@mutator
class _PermutationRewriter(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if call.op == tvm.ir.Op.get("relax.reshape"):
            return relax.op.reshape(self._before(call.args[0]), call.args[1])
        if call.op != tvm.ir.Op.get("relax.permute_dims"):
            return call
        shape = getattr(getattr(call.args[0].ty, "shape", None), "values", None)
        if shape is None:
            return call
        axes = call.attrs.axes
        order = [*range(len(shape))][::-1] if axes is None else [int(axis) for axis in axes]
        order = [axis % len(shape) for axis in order]
        wide = [axis for axis in order if not _is_one(shape[axis])]
        if wide != sorted(wide):
            return call
        return relax.op.reshape(self._before(call.args[0]), [shape[axis] for axis in order])

    def _before(self, value: relax.Expr) -> relax.Expr:
        """What a reshaped value was before."""
        bound = self.lookup_binding(value) if isinstance(value, relax.Var) else None
        if isinstance(bound, relax.Call) and bound.op == tvm.ir.Op.get("relax.reshape"):
            return bound.args[0]
        return value


def _is_one(extent: Any) -> bool:
    return isinstance(extent, tvm.tirx.IntImm) and int(extent) == 1
