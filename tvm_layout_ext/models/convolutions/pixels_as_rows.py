"""Convolutions whose results are one pixel become products, whose rows are the images."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...ir.queries import is_number, size_of
from ..relax_values import (
    ELEMENTWISE,
    FLOATS,
    VIEWS,
    bound_in_reach,
    dims_of,
    extents_of,
    has_shape,
    name_of,
    operators_of,
    rewritten,
    source_of,
)

#: Layouts whose first dim is that of rows, and of columns of a product.
_IMAGES, _WEIGHTS = ("NCHW", "NHWC"), ("OIHW", "OHWI")
#: Dims of a batch of images.
_RANK = 4


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.PixelsAsRows")
class PixelsAsRows:
    """Write a ``conv2d`` whose window is the whole image as a product by weights N x K.

    So are the convolutions of a squeeze-and-excitation, of images of one pixel, and classifiers
    that are written as convolutions. What is computed of a result element by element is computed of
    rows, so that a bias and a sigmoid still end the product's kernel, and the next convolution
    reads rows as they are.

    One image is a row, added up along K in vectors. As a convolution it has no rule of its own:
    modelled are 2.9 us for 1152 channels to 48, and for 240 to 64, where a kernel a block takes
    8.8 and dlight 5.5. More images of one pixel go to the same rules, in the same tiles, as their
    convolutions do; larger ones reach ``wgmma``, which their convolutions do not.

    Leaves alone: padded images, groups, layouts in which terms would have to be permuted, and types
    other than ``float16``, ``bfloat16`` and ``float32``.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        if "nn.conv2d" not in operators_of(mod):
            return mod
        # Of a result that is read as a row alone, the view is left over.
        return relax.transform.DeadCodeElimination()(rewritten(mod, _Rows))


@mutator
class _Rows(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if name_of(call) == "nn.conv2d":
            return self._product(call) if _is_taken(call) else call
        if name_of(call) == "reshape":
            source = source_of(call.args[0], VIEWS, self._call)
            return relax.op.reshape(source, call.args[1])
        return self._elementwise(call) if name_of(call) in ELEMENTWISE else call

    def _product(self, call: relax.Call) -> relax.Expr:
        image, weight = call.args
        (images, *_), (columns, *window) = _shape(image), _shape(weight)
        rows, weights = (
            self._viewed(one, (many, tirx.IntImm("int64", prod(map(int, window)))))
            for one, many in ((image, images), (weight, columns))
        )
        turned = self.builder_.emit(relax.op.permute_dims(weights, [1, 0]))
        made = relax.op.matmul(rows, turned, out_dtype=call.attrs.out_dtype or None)
        extents = {"N": images, "C": columns}
        shape = [extents.get(axis, 1) for axis in call.attrs.data_layout]
        return relax.op.reshape(self.builder_.emit(made), shape)

    def _elementwise(self, call: relax.Call) -> relax.Expr:
        """Compute of rows what is computed of images of one pixel."""
        if not any(map(self._is_row, call.args)):
            return call
        self.builder_.normalize(call)
        shape = _shape(call)
        if not any(self._is_row(one) and has_shape(one, shape) for one in call.args):
            return call
        given = [self._narrow(one, (0, _channels(shape))) for one in call.args]
        made = self.builder_.emit(relax.Call(call.op, given, call.attrs, call.ty_args))
        return relax.op.reshape(made, shape)

    def _is_row(self, value: Any) -> bool:
        """Whether a value is a view of rows, as images of one pixel."""
        shape = _shape(value)
        axis = _channels(shape)
        return axis > 0 and self._view(value, (shape[0], shape[axis])) is not None

    def _narrow(self, value: Any, axes: Sequence[int]) -> relax.Expr:
        """An operand of these axes of images alone; itself if it has no dims."""
        shape = _shape(value)
        if not shape:
            return value
        kept = [shape[at - _RANK] for at in axes if at >= _RANK - len(shape)]
        return self._viewed(value, kept or shape[-1:])

    def _viewed(self, value: Any, shape: Sequence[Any]) -> relax.Expr:
        """A value of another shape, by one view at most."""
        if (found := self._view(value, shape)) is not None:
            return found
        source = source_of(value, VIEWS, self._call)
        return self.builder_.emit(relax.op.reshape(source, [*shape]))

    def _view(self, value: Any, shape: Sequence[Any]) -> Any:
        """What has this shape among a value and what it is a view of, or None."""
        while not has_shape(value, shape):
            call = self._call(value)
            if name_of(call) not in VIEWS:
                return None
            value = call.args[0]
        return value

    def _call(self, value: Any) -> Any:
        return bound_in_reach(value, self.lookup_binding)


def _shape(value: Any) -> tuple[Any, ...]:
    """Extents of a tensor; none of what is no tensor."""
    return (extents_of(value) or ()) if isinstance(value.ty, relax.TensorType) else ()


def _channels(shape: Sequence[Any]) -> int:
    """The axis of channels of images of one pixel, or 0 if these are none."""
    if len(shape) != _RANK or not is_number(shape[2], 1):
        return 0
    if is_number(shape[3], 1):
        return 1
    return 3 if is_number(shape[1], 1) else 0


def _is_taken(call: Any) -> bool:
    """Whether a convolution adds up whole images, whose terms stand as those of the weights do."""
    attrs, (image, weight) = call.attrs, call.args
    if attrs.groups != 1 or any(int(n) for n in attrs.padding) or dims_of(weight) is None:
        return False
    if attrs.data_layout not in _IMAGES or attrs.kernel_layout not in _WEIGHTS:
        return False
    if attrs.out_layout not in ("", attrs.data_layout):
        return False
    terms = _terms(image, attrs.data_layout), _terms(weight, attrs.kernel_layout)
    if terms[0] is None or terms[0] != terms[1]:
        return False
    return {str(one.ty.dtype) for one in call.args} in [{one} for one in FLOATS]


def _terms(value: Any, layout: str) -> list[tuple[str, int | None]] | None:
    """Axes of more than one term, in their order, with how many; None where some are symbolic."""
    found = [size_of(extent) for extent in _shape(value)[1:]]
    if len(found) != _RANK - 1 or not all(isinstance(n, int) for n in found):
        return None
    axes = layout[1:].replace("C", "I")
    return [(axis, n) for axis, n in zip(axes, found, strict=True) if n != 1]
