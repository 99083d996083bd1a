"""Parts of a split become slices, which whoever reads them may take in place."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from .views import rewritten


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.SplitsAsSlices")
class SplitsAsSlices:
    """Make a ``strided_slice`` of each part of a ``split`` of a known length.

    A function of several results is fused with no reader; a slice is, so that it is never stored.
    Slices of a permutation are taken before it.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        return rewritten(mod, _Slice)


@mutator
class _Slice(PyExprMutator):
    def visit_tuple_getitem_(self, item: relax.TupleGetItem) -> relax.Expr:
        item = super().visit_tuple_getitem_(item)
        call = item.tuple_value
        call = self.lookup_binding(call) if isinstance(call, relax.Var) else call
        if not isinstance(call, relax.Call) or call.op != tvm.ir.Op.get("relax.split"):
            return item
        axis = int(call.attrs.axis)
        shape = getattr(getattr(call.args[0].ty, "shape", None), "values", None)
        if shape is None or not isinstance(shape[axis], tirx.IntImm):
            return item
        ends = _ends(call.attrs.indices_or_sections, int(shape[axis]))
        begin = (0, *ends)[item.index]
        source, turn = call.args[0], None
        before = self.lookup_binding(source) if isinstance(source, relax.Var) else None
        if isinstance(before, relax.Call) and before.op == tvm.ir.Op.get("relax.permute_dims"):
            # What is permuted for its parts only is sliced first.
            rank = len(shape)
            turn = [int(one) for one in before.attrs.axes or range(rank - 1, -1, -1)]
            source, axis = before.args[0], turn[axis] % rank
        part = relax.op.strided_slice(source, [axis], [begin], [ends[item.index]])
        return part if turn is None else relax.op.permute_dims(self.builder_.emit(part), turn)


def _ends(parts: Any, length: int) -> list[int]:
    """Where each part ends."""
    if isinstance(parts, int | tirx.IntImm):
        each = -(-length // int(parts))
        return [min(length, (at + 1) * each) for at in range(int(parts))]
    return [*map(int, parts), length]
