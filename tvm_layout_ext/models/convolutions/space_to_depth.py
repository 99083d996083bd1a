"""Convolutions of few channels by strides become ones of many channels by steps of one pixel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...ir.queries import size_of
from ..relax_values import NARROW_FLOATS, dims_of, extents_of, name_of, rewritten

#: Channels of a vector of 16 bytes of 16 bits.
_VECTOR = 8


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.SpaceToDepth")
class SpaceToDepth:
    """Let the pixels of a step be channels of one pixel, where an image has fewer than eight.

    Of 3 channels nothing can be copied as vectors. ResNet's first convolution, 7x7 by steps of 2,
    becomes one of 4x4 places of 12 channels, filled up to 16; a ViT's of 16x16 by steps of 16
    becomes a product of 768 terms. Weights that are constants are rearranged while compiling.
    Places that the window has not are zeros, so that in ``float32``, where each multiplication
    counts, only windows of whole steps are taken.

    MLPerf's ResNets do so by hand.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        return rewritten(mod, _PatchesAsChannels)


@mutator
class _PatchesAsChannels(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if name_of(call) != "nn.conv2d" or not _is_taken(call):
            return call
        image, weight = call.args
        (_, channels, *sizes), (*_, high, wide) = extents_of(image) or (), extents_of(weight) or ()
        steps = [int(one) for one in call.attrs.strides]
        before = [int(one) for one in call.attrs.padding[:2]]
        after = [int(one) for one in call.attrs.padding[2:]]
        filled = -(-int(channels) * steps[0] * steps[1] // _VECTOR) * _VECTOR
        places = [-(-int(n) // step) for n, step in zip((high, wide), steps, strict=True)]
        results = [
            (size_of(size) + ends - int(n)) // step + 1
            for size, ends, n, step in zip(
                sizes, map(sum, zip(before, after, strict=True)), (high, wide), steps, strict=True
            )
        ]
        pixels = [many + n - 1 for many, n in zip(results, places, strict=True)]
        is_known = all(isinstance(many, int) for many in pixels)
        deepened = self._deep if is_known else self._deep_of_any_size
        return relax.op.nn.conv2d(
            deepened(image, before, pixels, steps, filled),
            self._deep(weight, (0, 0), places, steps, filled),
            data_layout="NCHW",
            kernel_layout="OIHW",
            out_dtype=call.attrs.out_dtype,
        )

    def _deep(
        self, value: Any, before: Sequence[int], pixels: Sequence[int], steps: Any, filled: int
    ) -> relax.Expr:
        """An image, or weights, of so many pixels of so many channels each."""
        emit = self.builder_.emit
        first, channels, *sizes = extents_of(value) or ()
        ends = [
            many * step - int(size) - front
            for many, step, size, front in zip(pixels, steps, sizes, before, strict=True)
        ]
        if cut := [axis for axis, end in enumerate(ends) if end < 0]:
            kept = [int(sizes[axis]) + ends[axis] for axis in cut]
            starts = [0] * len(cut)
            value = emit(relax.op.strided_slice(value, [2 + axis for axis in cut], starts, kept))
        pads = [
            one for pair in zip(before, ends, strict=True) for one in (pair[0], max(0, pair[1]))
        ]
        if any(pads):
            value = emit(relax.op.nn.pad(value, [0, 0, 0, 0, *pads]))
        (rows, columns), (down, right) = pixels, steps
        value = emit(relax.op.reshape(value, (first, channels, rows, down, columns, right)))
        value = emit(relax.op.permute_dims(value, [0, 3, 5, 1, 2, 4]))
        deep = int(channels) * down * right
        value = emit(relax.op.reshape(value, (first, deep, rows, columns)))
        if filled > deep:
            value = emit(relax.op.nn.pad(value, [0, 0, 0, filled - deep, 0, 0, 0, 0]))
        return value

    def _deep_of_any_size(
        self, image: Any, before: Sequence[int], pixels: Sequence[Any], steps: Any, filled: int
    ) -> relax.Expr:
        """The same of a symbolic height or width, whose end is no whole number of steps."""
        (down, right), (top, left) = steps, before

        def deep(x: Any) -> Any:
            images, channels, high, wide = x.shape

            def value(n: Any, d: Any, i: Any, j: Any) -> Any:
                row = i * down + d // (right * channels) - top
                column = j * right + d // channels % right - left
                inside = tirx.all(
                    *(d < channels * down * right, row >= 0, row < high),
                    *(column >= 0, column < wide),
                )
                zero = tirx.const(0, str(x.dtype))
                return tirx.if_then_else(inside, x[n, d % channels, row, column], zero)

            return te.compute((images, filled, *pixels), value, name="deep")

        return self.builder_.emit_te(deep, image, primfunc_name_hint="space_to_depth")


def _is_taken(call: Any) -> bool:
    """Whether a convolution has few channels, and steps that its window is not smaller than."""
    attrs, weight = call.attrs, dims_of(call.args[1])
    image = extents_of(call.args[0])
    if attrs.data_layout != "NCHW" or attrs.kernel_layout != "OIHW" or attrs.groups != 1:
        return False
    if weight is None or image is None or len(attrs.padding) != 4:
        return False
    if not isinstance(image[1], tirx.IntImm):
        return False
    steps, window = [int(one) for one in attrs.strides], weight[2:]
    if weight[0] % _VECTOR or weight[1] >= _VECTOR or max(steps) == 1:
        return False
    if any(int(one) != 1 for one in attrs.dilation):
        return False
    if any(n < step for n, step in zip(window, steps, strict=True)):
        return False
    whole = not any(n % step for n, step in zip(window, steps, strict=True))
    return whole or str(call.args[0].ty.dtype) in NARROW_FLOATS
