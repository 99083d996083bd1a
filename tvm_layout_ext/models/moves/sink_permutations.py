"""Permutations go behind what is computed of them, until they meet others that undo them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...ir.evaluate import placeholder_extent
from ..merge_alike import MergeAlike
from ..relax_values import (
    ELEMENTWISE,
    VIEWS,
    axes_of,
    bound_in_reach,
    extents_of,
    has_shape,
    name_of,
    rewritten,
)
from .regroup import regroup

#: Pools of images and volumes, and their layouts of channels that are first, and last.
_POOLS: dict[str, tuple[Any, str, str]] = {
    "nn.max_pool2d": (relax.op.nn.max_pool2d, "NCHW", "NHWC"),
    "nn.avg_pool2d": (relax.op.nn.avg_pool2d, "NCHW", "NHWC"),
    "nn.max_pool3d": (relax.op.nn.max_pool3d, "NCDHW", "NDHWC"),
    "nn.avg_pool3d": (relax.op.nn.avg_pool3d, "NCDHW", "NDHWC"),
}


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.SinkPermutations")
class SinkPermutations:
    """Permute what is computed of a permutation in place of what it is computed from.

    Where the wide operands are permuted alike, ``f(p(x), p(y))`` is ``p(f(x, y))``; a product by a
    matrix, a slice and a reshape of ``p(x)`` are permutations of those of ``x``, the latter where
    what it joins are neighbours in ``x``. A permutation of a permutation is one, or none. ConvNeXt
    permutes to channels last for its norms, and back for the sum with a shortcut: all of it stays
    channels last. PyTorch's ``MultiheadAttention`` permutes batch and place, and takes heads apart
    by a reshape of both: all of it stays as it was given. A function is left as it was unless fewer
    elements are permuted.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        behind = (
            relax.transform.DeadCodeElimination(),
            MergeAlike(),
            relax.transform.CanonicalizeBindings(),
        )
        sunk = tvm.transform.Sequential(behind)(rewritten(mod, _Sink))
        found = {gv.name_hint: func for gv, func in sunk.functions_items()}
        changed = {}
        for gv, func in mod.functions_items():
            other = found.get(gv.name_hint, func)  # What nobody calls is gone there.
            changed[gv] = other if _permuted(other) < _permuted(func) else func
        return tvm.IRModule(changed, attrs=mod.attrs, global_infos=mod.global_infos)


def _permuted(func: Any) -> int:
    """Elements that a function permutes."""
    if not isinstance(func, relax.Function) or not isinstance(func.body, relax.SeqExpr):
        return 0
    values = [one.value for block in func.body.blocks for one in block.bindings]
    found = (extents_of(one) for one in values if name_of(one) == "permute_dims")
    return sum(prod(map(placeholder_extent, one)) for one in found if one is not None)


@mutator
class _Sink(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        name = name_of(call)
        if name == "permute_dims":
            return self._permute(call.args[0], axes_of(call))
        if name in VIEWS and name_of(self._call(call.args[0])) in ("permute_dims", "reshape"):
            self.builder_.normalize(call)
            shape = extents_of(call)
            return call if shape is None else self._reshape(call.args[0], shape)
        if name == "matmul":
            return self._product(call)
        if name == "strided_slice":
            return self._slice(call)
        if name in _POOLS:
            return self._pool(call)
        return self._elementwise(call) if name in ELEMENTWISE else call

    def _elementwise(self, call: relax.Call) -> relax.Expr:
        self.builder_.normalize(call)
        shape = extents_of(call)
        wide = [at for at, one in enumerate(call.args) if has_shape(one, shape)]
        orders = [self._order(call.args[at]) for at in wide]
        if not orders or not orders[0] or any(one != orders[0] for one in orders):
            return call
        inverse = [orders[0].index(axis) for axis in range(len(orders[0]))]
        given = [
            self._permuted(one).args[0] if at in wide else self._narrow(one, inverse)
            for at, one in enumerate(call.args)
        ]
        made = self.builder_.emit(relax.Call(call.op, given, call.attrs, call.ty_args))
        return relax.op.permute_dims(made, orders[0])

    def _permuted(self, value: Any) -> Any:
        """The permutation that a value is, or None."""
        call = self._call(value)
        return call if name_of(call) == "permute_dims" else None

    def _call(self, value: Any) -> Any:
        return bound_in_reach(value, self.lookup_binding)

    def _order(self, value: Any) -> list[int]:
        """The axes of what a value is a permutation of; none if it is none."""
        found = self._permuted(value)
        return [] if found is None else axes_of(found)

    def _permute(self, value: Any, order: Sequence[int]) -> relax.Expr:
        """A value permuted; of a permutation as one, or as what it was."""
        if (before := self._permuted(value)) is not None:
            own = axes_of(before)
            value, order = before.args[0], [own[axis] for axis in order]
        if [*order] == sorted(order):
            return value
        return relax.op.permute_dims(value, [*order])

    def _reshape(self, value: Any, shape: Sequence[Any]) -> relax.Expr:
        """A value of another shape, permuted behind that where it can be."""
        call = self._call(value)
        if name_of(call) == "reshape":
            # What it reshapes may be a permutation that could not go behind it alone.
            return self._reshape(call.args[0], shape)
        dims = extents_of(call.args[0]) if name_of(call) == "permute_dims" else None
        found = None if dims is None else regroup(dims, axes_of(call), shape)
        if found is None:
            return relax.op.reshape(value, shape)
        made = self.builder_.emit(self._reshape(call.args[0], found.shape))
        return self._permute(made, found.order)

    def _product(self, call: relax.Call) -> relax.Expr:
        """A product of permuted rows by a matrix."""
        order, matrix = self._order(call.args[0]), extents_of(call.args[1])
        if not order or matrix is None or len(matrix) != 2 or order[-1] != len(order) - 1:
            return call
        given = [self._permuted(call.args[0]).args[0], call.args[1]]
        made = self.builder_.emit(relax.Call(call.op, given, call.attrs, call.ty_args))
        return relax.op.permute_dims(made, order)

    def _slice(self, call: relax.Call) -> relax.Expr:
        """A slice of a permutation."""
        order = self._order(call.args[0])
        axes = call.args[1]
        if not order or not isinstance(axes, relax.Tuple):
            return call
        source = self._permuted(call.args[0]).args[0]
        own = [order[int(getattr(axis, "value", axis)) % len(order)] for axis in axes.fields]
        steps = call.args[4] if len(call.args) > 4 else None
        inbound = bool(call.attrs.assume_inbound)
        part = relax.op.strided_slice(source, own, *call.args[2:4], steps, inbound)
        return relax.op.permute_dims(self.builder_.emit(part), order)

    def _pool(self, call: relax.Call) -> relax.Expr:
        """A pool whose channels were last; ConvertLayout knows none of volumes."""
        make, first, last = _POOLS[name_of(call)]
        order = [last.index(axis) for axis in first]
        if self._order(call.args[0]) != order or call.attrs.layout != first:
            return call
        source, attrs = self._permuted(call.args[0]).args[0], call.attrs
        given = (attrs.pool_size, attrs.strides, attrs.padding, attrs.dilation)
        made = make(source, *given, attrs.ceil_mode, attrs.count_include_pad, last)
        return relax.op.permute_dims(self.builder_.emit(made), order)

    def _narrow(self, value: Any, inverse: Sequence[int]) -> relax.Expr:
        """An operand that is broadcast, or that is no tensor, as it was before the permutation."""
        shape = extents_of(value) if isinstance(value.ty, relax.TensorType) else None
        if not shape:
            return value
        missing = len(inverse) - len(shape)
        if missing:
            value = self.builder_.emit(relax.op.reshape(value, [1] * missing + [*shape]))
        return self.builder_.emit(relax.op.permute_dims(value, inverse))
