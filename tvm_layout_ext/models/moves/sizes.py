"""Symbolic sizes that are computed with are tensors, which all of TVM's passes know."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, topi
from tvm.ir import PrimType
from tvm.relax.expr_functor import PyExprMutator, mutator


@mutator
class SizesAsTensors(PyExprMutator):
    """Gives operators of tensors a tensor of one element where they have a symbolic size.

    Relax takes one beside a tensor, as ``torch.roll`` of a dynamic dim has it, and TVM 0.27's
    ``ConvertLayout`` ends the process there.
    """

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Rewrite a call."""
        call = super().visit_call_(call)
        kinds = [one.type_info for one in getattr(call.op, "arguments", ())]
        if len(kinds) != len(call.args):
            return call
        pairs = [*zip(call.args, kinds, strict=True)]
        given = [self._tensor(one) if kind == "Tensor" else one for one, kind in pairs]
        if all(new.same_as(old) for new, old in zip(given, call.args, strict=True)):
            return call
        return relax.Call(call.op, given, call.attrs, call.ty_args)

    def _tensor(self, value: relax.Expr) -> relax.Expr:
        """What a number is, as a tensor without dims."""
        if not isinstance(value.ty, PrimType):
            return value
        return self.builder_.emit_te(_without_dims, value, primfunc_name_hint="size")


def _without_dims(value: Any) -> te.Tensor:
    return te.compute((), lambda: value, name="size", tag=topi.tag.INJECTIVE)
