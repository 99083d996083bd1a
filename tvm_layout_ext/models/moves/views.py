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
    """Make a reshape of each ``permute_dims`` of dims of extent 1, and one of several views.

    What a product reads as its second operand is turned by its last two dims alone, where the rest
    of the permutation moves dims of extent 1: the product itself reads it so.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        return rewritten(mod, _PermutationRewriter)


@mutator
class _PermutationRewriter(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if name_of(call) == "reshape":
            return relax.op.reshape(self._before(call.args[0]), call.args[1])
        if name_of(call) == "matmul":
            return self._product(call)
        shape = extents_of(call.args[0]) if name_of(call) == "permute_dims" else None
        if shape is None:
            return call
        order = axes_of(call)
        wide = [axis for axis in order if not is_number(shape[axis], 1)]
        if wide != sorted(wide):
            return call
        return relax.op.reshape(self._before(call.args[0]), [shape[axis] for axis in order])

    def _product(self, call: relax.Call) -> relax.Expr:
        """A product by what was brought behind one head, as by keys of it."""
        turned = bound_in_reach(call.args[1], self.lookup_binding)
        shape = extents_of(turned.args[0]) if name_of(turned) == "permute_dims" else None
        if shape is None or len(shape) < 3:
            return call
        # The dims before the product's own turn.
        *order, last, row = axes_of(turned)
        order += [row, last]
        wide = [axis for axis in order if not is_number(shape[axis], 1)]
        if order == sorted(order) or wide != sorted(wide):
            return call
        rows = relax.op.reshape(self._before(turned.args[0]), [shape[axis] for axis in order])
        swap = [*range(len(order) - 2), len(order) - 1, len(order) - 2]
        swapped = self.builder_.emit(relax.op.permute_dims(self.builder_.emit(rows), swap))
        return relax.op.matmul(call.args[0], swapped, call.attrs.out_dtype)

    def _before(self, value: relax.Expr) -> relax.Expr:
        """What a reshaped value was before."""
        bound = bound_in_reach(value, self.lookup_binding)
        return bound.args[0] if name_of(bound) in VIEWS else value
