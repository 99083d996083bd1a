"""Parts of a split, and what is taken at a known place, become slices."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..known_values import scalar_of
from ..relax_values import (
    VIEWS,
    axes_of,
    bound_in_reach,
    bound_to,
    extents_of,
    name_of,
    rewritten,
    whole_numbers,
)

#: What moves elements and is read in place.
_MOVES = ("permute_dims", *VIEWS)


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.SplitsAsSlices")
class SplitsAsSlices:
    """Make a ``strided_slice`` of each part of a ``split`` of a known length.

    A function of several results is fused with no reader; a slice is, so that it is never stored.
    Slices of a permutation are taken before it. A ``take`` of one place that is known, which is
    ``tensor[2]`` in PyTorch, is a slice, too, where elements have been moved before.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        return rewritten(mod, _Slice)


@mutator
class _Slice(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if name_of(call) == "strided_slice":
            return _from_the_front(call)
        if name_of(call) != "take" or call.attrs.axis is None or call.args[1].ty.ndim != 0:
            return call
        place, shape = scalar_of(call.args[1], self.lookup_binding), extents_of(call.args[0])
        # A slice of what is computed would be fused with it, a norm of which one row is read.
        source = bound_to(call.args[0], self.lookup_binding)
        if place is None or shape is None or name_of(source) not in _MOVES:
            return call
        axis, at = int(call.attrs.axis) % len(shape), int(place)
        if not isinstance(shape[axis], tirx.IntImm) or not 0 <= at < int(shape[axis]):
            return call
        part = self._sliced(call.args[0], axis, at, at + 1)
        return relax.op.squeeze(self.builder_.emit(part), [axis])

    def visit_tuple_getitem_(self, item: relax.TupleGetItem) -> relax.Expr:
        item = super().visit_tuple_getitem_(item)
        call = bound_in_reach(item.tuple_value, self.lookup_binding)
        if name_of(call) != "split":
            return item
        axis, shape = int(call.attrs.axis) % call.args[0].ty.ndim, extents_of(call.args[0])
        if shape is None or not isinstance(shape[axis], tirx.IntImm):
            return item
        ends = _ends(call.attrs.indices_or_sections, int(shape[axis]))
        return self._sliced(call.args[0], axis, (0, *ends)[item.index], ends[item.index])

    def _sliced(self, source: Any, axis: int, begin: int, end: int) -> relax.Expr:
        """Elements of a dim; what is permuted for its parts only is sliced first."""
        before, turn = bound_in_reach(source, self.lookup_binding), None
        if name_of(before) == "permute_dims":
            turn = axes_of(before)
            source, axis = before.args[0], turn[axis]
        part = relax.op.strided_slice(source, [axis], [begin], [end])
        return part if turn is None else relax.op.permute_dims(self.builder_.emit(part), turn)


def _from_the_front(call: relax.Call) -> relax.Expr:
    """A slice whose axes are counted from the front: TVM lowers others of known extents only."""
    source, axes, *rest = call.args
    counted = whole_numbers(axes)
    if counted is None or min(counted, default=0) >= 0:
        return call
    front = [axis % source.ty.ndim for axis in counted]
    return relax.op.strided_slice(source, front, *rest, assume_inbound=call.attrs.assume_inbound)


def _ends(parts: Any, length: int) -> list[int]:
    """Where each part ends."""
    if isinstance(parts, int | tirx.IntImm):
        each = -(-length // int(parts))
        return [min(length, (at + 1) * each) for at in range(int(parts))]
    return [*map(int, parts), length]
