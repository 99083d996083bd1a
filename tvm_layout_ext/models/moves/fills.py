"""Tensors of one infinite value, lowered where TVM 0.27 ends in an error of Python's."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx, topi
from tvm.ir import GenericConst


def lower_full(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Lower ``full`` of a known number; TVM fails where it is infinite, as those of masks are."""
    shape, value = call.ty.shape, call.args[1]
    if not (isinstance(shape, relax.ShapeExpr) and isinstance(value, GenericConst)):
        return call.op.get_attr("FLegalize")(builder, call)
    number = tirx.const(value.value.numpy().item(), str(call.ty.dtype))

    def filled(extents: Any) -> te.Tensor:
        return te.compute(extents, lambda *_: number, name="T_full", tag=topi.tag.ELEMWISE)

    return builder.call_te(filled, shape.values, primfunc_name_hint="full")


#: What ``LegalizeOps`` is given, wherever a mask may be among what it lowers.
FILLS = dict.fromkeys(("relax.full", "relax.full_like"), lower_full)
