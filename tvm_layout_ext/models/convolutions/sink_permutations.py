"""Permutations between channels-last convolutions go behind what is elementwise, until they end."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...ir.evaluate import placeholder_extent
from ...ir.queries import are_equal
from ..relax_values import ELEMENTWISE, extents_of, name_of
from ..views import rewritten


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.SinkPermutations")
class SinkPermutations:
    """Permute what is computed element by element in place of what it is computed from.

    Where the wide operands are permuted alike, ``f(p(x), p(y))`` is ``p(f(x, y))``; a permutation
    of a permutation is one, or none. ConvNeXt permutes to channels last for its norms, and back for
    the sum with a shortcut: all of it stays channels last. A function is left as it was unless
    fewer elements are permuted.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        sunk = relax.transform.DeadCodeElimination()(rewritten(mod, _Sink))
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
        if name_of(call) == "permute_dims":
            return self._joined(call)
        if name_of(call) not in ELEMENTWISE:
            return call
        self.builder_.normalize(call)
        shape = extents_of(call)
        wide = [at for at, one in enumerate(call.args) if _has_shape(one, shape)]
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
        bound = self.lookup_binding(value) if isinstance(value, relax.Var) else None
        return bound if name_of(bound) == "permute_dims" else None

    def _order(self, value: Any) -> list[int]:
        """The axes of what a value is a permutation of; none if it is none."""
        found = self._permuted(value)
        return [] if found is None else _axes(found)

    def _joined(self, call: relax.Call) -> relax.Expr:
        """A permutation of a permutation as one, or as what it was."""
        order, before = _axes(call), self._permuted(call.args[0])
        value = call.args[0]
        if before is not None:
            own = _axes(before)
            value, order = before.args[0], [own[axis] for axis in order]
        if order and order == sorted(order):
            return value
        return call if before is None else relax.op.permute_dims(value, order)

    def _narrow(self, value: Any, inverse: Sequence[int]) -> relax.Expr:
        """An operand that is broadcast, or that is no tensor, as it was before the permutation."""
        shape = extents_of(value) if isinstance(value.ty, relax.TensorType) else None
        if not shape:
            return value
        missing = len(inverse) - len(shape)
        if missing:
            value = self.builder_.emit(relax.op.reshape(value, [1] * missing + [*shape]))
        return self.builder_.emit(relax.op.permute_dims(value, inverse))


def _axes(call: Any) -> list[int]:
    dims = extents_of(call.args[0]) or ()
    axes = call.attrs.axes
    order = [*range(len(dims))][::-1] if axes is None else [int(axis) for axis in axes]
    return [axis % len(dims) for axis in order]


def _has_shape(value: Any, shape: Any) -> bool:
    own = extents_of(value) if isinstance(value.ty, relax.TensorType) else None
    return own is not None and len(own) == len(shape or ()) and are_equal(own, shape)
