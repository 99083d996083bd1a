"""Permutations that leave all elements where they are become reshapes, which cost nothing."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...ir.queries import is_number
from ..relax_values import VIEWS, axes_of, bound_in_reach, extents_of, name_of, rewritten


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.PermutationsAsViews")
class PermutationsAsViews:
    """Make a reshape of each ``permute_dims`` of dims of extent 1, and one of several views."""

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        return rewritten(mod, _PermutationRewriter)


@mutator
class _PermutationRewriter(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if name_of(call) == "reshape":
            return relax.op.reshape(self._before(call.args[0]), call.args[1])
        shape = extents_of(call.args[0]) if name_of(call) == "permute_dims" else None
        if shape is None:
            return call
        order = axes_of(call)
        wide = [axis for axis in order if not is_number(shape[axis], 1)]
        if wide != sorted(wide):
            return call
        return relax.op.reshape(self._before(call.args[0]), [shape[axis] for axis in order])

    def _before(self, value: relax.Expr) -> relax.Expr:
        """What a reshaped value was before."""
        bound = bound_in_reach(value, self.lookup_binding)
        return bound.args[0] if name_of(bound) in VIEWS else value
