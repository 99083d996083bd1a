"""Operands of products are not repeated for each of a batch."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...ir.queries import are_equal
from ..relax_values import bound_in_reach, extents_of, has_shape, name_of, rewritten


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.DropBroadcasts")
class DropBroadcasts:
    """Give a ``matmul`` what is before a ``broadcast_to`` of an operand where its result is same.

    ``run_decompositions`` repeats a weight for each of a batch, and a constant one is then folded
    to as many copies. Relax's ``matmul`` broadcasts by itself. What is repeated to its own shape is
    not copied either.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        return rewritten(mod, _Drop)


@mutator
class _Drop(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if name_of(call) == "broadcast_to" and has_shape(call.args[0], extents_of(call)):
            return call.args[0]
        if name_of(call) != "matmul":
            return call
        operands = [*call.args]
        for at, one in enumerate(operands):
            before = bound_in_reach(one, self.lookup_binding)
            if (matrix := self._matrix(before, operands[1 - at])) is not None:
                operands[at] = matrix
            elif name_of(before) == "broadcast_to" and _is_free(before, operands[1 - at]):
                operands[at] = before.args[0]
        return relax.Call(call.op, operands, call.attrs, call.ty_args)

    def _matrix(self, view: Any, other: Any) -> Any:
        """The matrix that is repeated for several dims of a batch, which are one dim then.

        So is the weight of a linear whose rows are windows. The other operand has that batch, too.
        """
        if name_of(view) != "reshape":
            return None
        own, beside = extents_of(view), extents_of(other)
        if own is None or beside is None or not are_equal(own[:-2], beside[:-2]):
            return None
        wide = bound_in_reach(view.args[0], self.lookup_binding)
        if name_of(wide) != "broadcast_to":
            return None
        source, *others = (extents_of(one) for one in (wide.args[0], wide, view))
        if source is None or len(source) != 2:
            return None
        same = all(one is not None and are_equal(source, one[-2:]) for one in others)
        return wide.args[0] if same else None


def _is_free(wide: relax.Call, other: relax.Expr) -> bool:
    """Whether a product with another operand is the same without a repetition."""
    source, whole, beside = (extents_of(one) for one in (wide.args[0], wide, other))
    if source is None or whole is None or beside is None or len(source) < 2:
        return False
    if not are_equal(source[-2:], whole[-2:]):
        return False
    batch = whole[:-2]
    kept, rest = ([tirx.const(1, "int64")] * len(batch) + [*one[:-2]] for one in (source, beside))
    pairs = zip(kept[::-1], rest[::-1], batch[::-1], strict=False)
    return all(are_equal([want], [have]) or are_equal([want], [more]) for have, more, want in pairs)
