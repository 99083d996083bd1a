"""What is added to a part of a tensor is added to all of it, with zeros around."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...ir.queries import size_of
from ..relax_values import (
    bound_in_reach,
    bound_to,
    cleaned,
    extents_of,
    has_shape,
    name_of,
    operators_of,
    rewritten,
    slices_of,
    whole_numbers,
)


def scatters_as_sums(mod: tvm.IRModule) -> tvm.IRModule:
    """Make ``x + pad(y)`` of a slice of ``x``, to which ``y`` is added, that is put back.

    ``x[:, 1:] += y`` is exported as a slice, a sum and a ``slice_scatter``, and once more as a
    slice that is put back as it was, which is what it was put into. So no elementwise operator is
    left, and scores to which MViT adds its positions, all but those of its first token, are no
    attention: eight clips took 23.1 ms, and 10.7 since (H200).
    """
    if "slice_scatter" not in operators_of(mod):
        return mod
    return cleaned(rewritten(mod, _Sums))


@mutator
class _Sums(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if name_of(call) != "slice_scatter":
            return call
        x, part, *numbers = call.args
        where = _place(x, int(call.attrs.axis), *(whole_numbers(numbers) or ()))
        if where is None:
            return call
        if self._is_slice(part, x, where):
            return x
        total = bound_to(part, self.lookup_binding)
        if name_of(total) != "add":
            return call
        for one, other in (total.args, reversed([*total.args])):
            if self._is_slice(one, x, where) and has_shape(other, extents_of(part)):
                return relax.op.add(x, self.builder_.emit(self._padded(other, x, where)))
        return call

    def _padded(self, value: Any, x: Any, where: tuple[int, int, int]) -> relax.Expr:
        """A value with zeros around it; what has zeros along other dims has all of them at once."""
        axis, begin, end = where
        pads = [0] * (2 * x.ty.ndim)
        pads[2 * axis : 2 * axis + 2] = begin, int((extents_of(x) or ())[axis]) - end
        before = bound_in_reach(value, self.lookup_binding)
        attrs = before.attrs if name_of(before) == "nn.pad" else None
        if attrs is not None and (attrs.pad_mode, attrs.pad_value) == ("constant", 0):
            value = before.args[0]
            pads = [int(own) + more for own, more in zip(attrs.pad_width, pads, strict=True)]
        return relax.op.nn.pad(value, pads)

    def _is_slice(self, value: Any, x: Any, where: tuple[int, int, int]) -> bool:
        """Whether a value is a part of ``x``."""
        call = bound_to(value, self.lookup_binding)
        if name_of(call) != "strided_slice" or not self._name(call.args[0]).same_as(self._name(x)):
            return False
        found = slices_of(call)
        if found is None or any(len(one) != 1 for one in found):
            return False
        return _place(x, *(one[0] for one in found)) == where

    def _name(self, value: Any) -> Any:
        """The first name of a value that has several."""
        while isinstance(before := self.lookup_binding(value), relax.Var):
            value = before
        return value


def _place(
    x: Any, axis: int, begin: int | None = None, end: int | None = None, step: int = 1
) -> tuple[int, int, int] | None:
    """An axis, where a part begins and ends; None where that is not known, or has steps."""
    extents = extents_of(x)
    if extents is None or begin is None or end is None or step != 1:
        return None
    axis %= len(extents)
    extent = size_of(extents[axis])
    if not isinstance(extent, int):
        return None
    first, last, _ = slice(begin, end).indices(extent)
    return axis, first, last
