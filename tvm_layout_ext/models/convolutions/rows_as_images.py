"""Convolutions of one dim become ones of images of a single row."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..relax_values import (
    ELEMENTWISE,
    bound_to,
    extents_of,
    has_shape,
    name_of,
    operators_of,
    rewritten,
)

#: Where images have their rows, of batch, channels, rows and columns.
_ROWS = 2


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.RowsAsImages")
class RowsAsImages:
    """Write ``conv1d`` as a ``conv2d`` whose images and windows have one row.

    Elements stay where they are. What is computed of a result element by element is computed of
    the image, so that a bias and a GELU still follow the convolution, and of two convolutions with
    nothing else between them the second one reads an image as it is.

    Leaves alone: layouts other than NCW and OIW.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        if "nn.conv1d" not in operators_of(mod):
            return mod
        # Of a result that is read as an image alone, the view is left over.
        return relax.transform.DeadCodeElimination()(rewritten(mod, _OneRowImages))


@mutator
class _OneRowImages(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if name_of(call) == "nn.conv1d":
            return self._convolution(call) if _is_taken(call) else call
        return self._elementwise(call) if name_of(call) in ELEMENTWISE else call

    def _convolution(self, call: relax.Call) -> relax.Expr:
        attrs, (before, after) = call.attrs, call.attrs.padding
        return self._row_of(
            relax.op.nn.conv2d(
                self._image(call.args[0]),
                self._image(call.args[1]),
                strides=[1, *attrs.strides],
                padding=[0, before, 0, after],
                dilation=[1, *attrs.dilation],
                groups=attrs.groups,
                out_dtype=attrs.out_dtype,
            )
        )

    def _elementwise(self, call: relax.Call) -> relax.Expr:
        """Compute of images what is computed of their rows."""
        if not any(self._is_row(one) for one in call.args):
            return call
        self.builder_.normalize(call)
        shape = extents_of(call)
        rows = [one for one in call.args if self._is_row(one)]
        if shape is None or not all(has_shape(one, shape) for one in rows):
            return call
        given = [self._image(one) for one in call.args]
        return self._row_of(relax.Call(call.op, given, call.attrs, call.ty_args))

    def _row_of(self, image: relax.Expr) -> relax.Expr:
        return relax.op.squeeze(self.builder_.emit(image), [_ROWS])

    def _is_row(self, value: Any) -> bool:
        """Whether a value is the only row of an image."""
        call: Any = bound_to(value, self.lookup_binding)
        if name_of(call) != "squeeze" or len(extents_of(call.args[0]) or ()) != _ROWS + 2:
            return False
        return [int(axis) for axis in call.attrs.axis or ()] == [_ROWS]

    def _image(self, value: Any) -> relax.Expr:
        """A value with one row; itself if it is no tensor, or is broadcast along channels."""
        if self._is_row(value):
            call: Any = bound_to(value, self.lookup_binding)
            return call.args[0]
        is_tensor = isinstance(getattr(value, "ty", None), relax.TensorType)
        if not is_tensor or int(value.ty.ndim) < _ROWS:
            return value
        return self.builder_.emit(relax.op.expand_dims(value, int(value.ty.ndim) - 1))


def _is_taken(call: Any) -> bool:
    """Whether the layouts are those of images, and the operands' extents are written out."""
    layouts = [str(getattr(call.attrs, f"{one}_layout")) for one in ("data", "kernel", "out")]
    is_known = all(extents_of(one) is not None for one in call.args)
    return layouts == ["NCW", "OIW", "NCW"] and is_known
