"""A product and what unpacks its weights become one function."""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax import dpl

#: TVM's kinds of operators: the last that computes an element from elements, and a product's.
_INJECTIVE, _PRODUCT = 2, 4
_KIND = "op_pattern"
#: Tensors from which weights are unpacked: packed values, scales, and zeros or a table.
_PARTS = (1, 2, 3, 4)


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.FuseWeights")
class FuseWeights:
    """Make one function of each product and the function that unpacks an operand of it alone.

    TVM's FuseOps fuses products with what follows them only. What is unpacked has more bytes than
    what it is made of; a product that reads it from memory would read several times the weights.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module whose operators are lowered."""
        patterns = [_pattern(count, at) for count in _PARTS for at in (1, 0)]
        checked = [(name, *parts, _Check(mod)) for name, *parts in patterns]
        fused = relax.transform.FuseOpsByPattern(checked)(mod)
        old = {gv.name_hint for gv in mod.functions}
        if {gv.name_hint for gv in fused.functions} == old:
            return mod
        fused = relax.transform.FuseTIR()(fused)
        functions = {
            gv: func.with_attr(_KIND, _PRODUCT)
            if isinstance(func, tirx.PrimFunc) and gv.name_hint not in old
            else func
            for gv, func in fused.functions.items()
        }
        return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _pattern(count: int, at: int) -> tuple[str, dpl.DFPattern, dict[str, dpl.DFPattern]]:
    """A product whose operand at a place comes from a function of so many tensors."""
    call = dpl.is_op("relax.call_tir")
    weight = call(
        dpl.GlobalVarPattern(),
        dpl.TuplePattern([dpl.wildcard() for _ in range(count)]),
        add_constraint=False,
    )
    operands = [dpl.wildcard(), weight] if at else [weight, dpl.wildcard()]
    product = call(dpl.GlobalVarPattern(), dpl.TuplePattern(operands), add_constraint=False)
    return "unpacked_product", product, {"weight": weight, "product": product}


class _Check:
    """Whether functions of a match are what they are to be."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self.mod = mod

    def __call__(self, context: relax.transform.PatternCheckContext) -> bool:
        found = context.annotated_expr
        weight, product = found["weight"], found["product"]
        kinds = [self._kind(one) for one in (weight, product)]
        parts = weight.args[1].fields
        whole = any("int" in str(getattr(one.ty, "dtype", "")) for one in parts)
        is_wider = _bytes(weight) > sum(map(_bytes, parts))
        return kinds[0] <= _INJECTIVE and kinds[1] == _PRODUCT and whole and is_wider

    def _kind(self, call: relax.Call) -> int:
        return int(self.mod[call.args[0]].attrs.get(_KIND, _PRODUCT + 1))


def _bytes(value: Any) -> float:
    shape = getattr(getattr(value.ty, "shape", None), "values", None)
    if shape is None or not all(isinstance(one, tirx.IntImm) for one in shape):
        return float("inf")
    lanes = tvm.DataType(str(value.ty.dtype))
    return prod(map(int, shape)) * lanes.bits / 8
