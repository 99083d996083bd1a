"""Axes are counted from the first one, as TVM's passes have them."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..relax_values import name_of


@mutator
class PositiveAxes(PyExprMutator):
    """Rewrites ``squeeze`` and ``permute_dims`` whose axes are counted from the last one.

    TVM 0.27's ``ConvertLayout`` fails at them ("bad_alloc"), as a ``MultiheadAttention`` of PyTorch
    has one; of other operators it knows such axes. At a ``stack`` it always fails, so that one
    becomes a ``concat``.
    """

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Rewrite a call."""
        call = super().visit_call_(call)
        make = _MAKE.get(name_of(call))
        return call if make is None else make(call)


def _squeeze(call: relax.Call) -> relax.Expr:
    (x,), axes = call.args, call.attrs.axis
    return call if axes is None else relax.op.squeeze(x, [int(at) % x.ty.ndim for at in axes])


def _permute(call: relax.Call) -> relax.Expr:
    (x,), axes = call.args, call.attrs.axes
    return call if axes is None else relax.op.permute_dims(x, [int(at) % x.ty.ndim for at in axes])


def _stack(call: relax.Call) -> relax.Expr:
    (parts,), axis = call.args, int(call.attrs.axis or 0)
    if not isinstance(parts, relax.Tuple):
        return call
    at = axis % (parts.fields[0].ty.ndim + 1)
    return relax.op.concat([relax.op.expand_dims(one, [at]) for one in parts.fields], at)


_MAKE: dict[str, Any] = {"squeeze": _squeeze, "permute_dims": _permute, "stack": _stack}
