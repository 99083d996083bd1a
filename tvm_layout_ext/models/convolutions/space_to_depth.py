"""Convolutions of few channels by strides become ones of many channels by steps of one pixel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from math import prod
from typing import Any

import tvm
from tvm import relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...ir.queries import size_of
from ..relax_values import dims_of, extents_of, name_of, rewritten
from ..tf32 import CONV, types_of

#: Channels of a vector of 16 bytes of 16 bits.
VECTOR = 8
#: Convolutions, with the layouts in which they are taken.
CONVOLUTIONS = {
    "nn.conv2d": (relax.op.nn.conv2d, "NCHW", "OIHW"),
    "nn.conv3d": (relax.op.nn.conv3d, "NCDHW", "OIDHW"),
}


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.SpaceToDepth")
class SpaceToDepth:
    """Let the pixels of a step be channels of one pixel, where an image has fewer than eight.

    Of 3 channels nothing can be copied as vectors. ResNet's first convolution, 7x7 by steps of 2,
    becomes one of 4x4 places of 12 channels, filled up to 16; a ViT's of 16x16 by steps of 16
    becomes a product of 768 terms. Weights that are constants are rearranged while compiling.
    Places that the window has not are zeros, so that in ``float32``, where each multiplication
    counts, only windows of whole steps are taken.

    MLPerf's ResNets do so by hand. ``tf32`` is as of :class:`.ChannelsLast`.
    """

    def __init__(self, tf32: Iterable[str] = ()) -> None:
        self.types = types_of(CONV, tf32)

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        return rewritten(mod, partial(_PatchesAsChannels, products=self.types))


@mutator
class _PatchesAsChannels(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, products: Sequence[str]) -> None:
        super().__init__(mod)
        self.products = products

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not is_plain(call) or not _is_taken(call, self.products):
            return call
        image, weight = call.args
        channels, *sizes = (extents_of(image) or ())[1:]
        window = (dims_of(weight) or [])[2:]
        rank = len(window)
        steps, pads = [*map(int, call.attrs.strides)], [*map(int, call.attrs.padding)]
        before, after = pads[:rank], pads[rank:]
        filled = -(-int(channels) * prod(steps) // VECTOR) * VECTOR
        places = [-(-n // step) for n, step in zip(window, steps, strict=True)]
        sides = zip(sizes, before, after, window, steps, places, strict=True)
        pixels = [
            (size_of(size) + front + end - n) // step + many
            for size, front, end, n, step, many in sides
        ]
        is_known = all(isinstance(many, int) for many in pixels)
        deepened = self._deep if is_known else self._deep_of_any_size
        made, data, kernel = CONVOLUTIONS[name_of(call)]
        return made(
            deepened(image, before, pixels, steps, filled),
            self._deep(weight, [0] * rank, places, steps, filled),
            data_layout=data,
            kernel_layout=kernel,
            out_dtype=call.attrs.out_dtype,
        )

    def _deep(
        self, value: Any, before: Sequence[int], pixels: Sequence[int], steps: Any, filled: int
    ) -> relax.Expr:
        """An image, or weights, of so many pixels of so many channels each."""
        emit, rank = self.builder_.emit, len(steps)
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
        apart = [one for pair in zip(pixels, steps, strict=True) for one in pair]
        value = emit(relax.op.reshape(value, (first, channels, *apart)))
        order = [0, *range(3, 3 + 2 * rank, 2), 1, *range(2, 2 + 2 * rank, 2)]
        value = emit(relax.op.permute_dims(value, order))
        deep = int(channels) * prod(steps)
        value = emit(relax.op.reshape(value, (first, deep, *pixels)))
        if filled > deep:
            value = emit(relax.op.nn.pad(value, [0, 0, 0, filled - deep, *[0] * (2 * rank)]))
        return value

    def _deep_of_any_size(
        self, image: Any, before: Sequence[int], pixels: Sequence[Any], steps: Any, filled: int
    ) -> relax.Expr:
        """The same of a symbolic size, whose end is no whole number of steps."""

        def deep(x: Any) -> Any:
            images, channels, *sizes = x.shape

            def value(n: Any, d: Any, *pixel: Any) -> Any:
                inside, rest, places = [d < channels * prod(steps)], d // channels, list[Any]()
                for at in reversed(range(len(steps))):
                    offset = rest % steps[at] if at else rest
                    one = pixel[at] * steps[at] + offset - before[at]
                    rest, places = rest // steps[at], [one, *places]
                    inside += [one >= 0, one < sizes[at]]
                zero = tirx.const(0, str(x.dtype))
                place = (n, d % channels, *places)
                return tirx.if_then_else(tirx.all(*inside), x[place], zero)

            return te.compute((images, filled, *pixels), value, name="deep")

        return self.builder_.emit_te(deep, image, primfunc_name_hint="space_to_depth")


def is_plain(call: Any) -> bool:
    """Whether a call is a convolution of one group into whole vectors, in a layout of these."""
    if name_of(call) not in CONVOLUTIONS:
        return False
    attrs, weight = call.attrs, dims_of(call.args[1])
    if (attrs.data_layout, attrs.kernel_layout) != CONVOLUTIONS[name_of(call)][1:]:
        return False
    if weight is None or extents_of(call.args[0]) is None or attrs.groups != 1:
        return False
    return len(attrs.padding) == 2 * len(attrs.strides) and weight[0] % VECTOR == 0


def _is_taken(call: Any, products: Sequence[str]) -> bool:
    """Whether a convolution has few channels, and steps that its window is not smaller than."""
    attrs, weight = call.attrs, dims_of(call.args[1]) or []
    channels = (extents_of(call.args[0]) or ())[1]
    if not isinstance(channels, tirx.IntImm):
        return False
    steps, window = [*map(int, attrs.strides)], weight[2:]
    if weight[1] >= VECTOR or max(steps) == 1:
        return False
    if any(int(one) != 1 for one in attrs.dilation):
        return False
    if any(n < step for n, step in zip(window, steps, strict=True)):
        return False
    whole = not any(n % step for n, step in zip(window, steps, strict=True))
    return whole or str(call.args[0].ty.dtype) in products
