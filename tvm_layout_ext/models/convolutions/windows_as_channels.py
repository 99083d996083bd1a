"""Convolutions of few channels become products of whole windows, by steps of one pixel."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tvm
from tvm import relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...ir.queries import size_of
from ..relax_values import NARROW_FLOATS, dims_of, extents_of, name_of, rewritten
from .space_to_depth import CONVOLUTIONS, VECTOR, is_plain

#: Most terms of a window that is written out.
_MOST_TERMS = 128


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.WindowsAsChannels")
class WindowsAsChannels:
    """Let the window of a pixel be its channels, where channels fill no vector of 16 bytes.

    TMA copies no pixels of 3 channels. The 27 terms of a 3x3 window are written out, filled up to
    32, and multiplied as rows of a matrix: first layers of VGG and of U-Nets, and those behind the
    4 channels of a latent image. A window shall have 128 terms at most; those of one channel and
    3x3x3 took 845 us of two volumes of 96^3 by ``mma.sync`` on the image (H200), and moving 64
    bytes a pixel twice takes 54.

    Leaves alone: ``float32``, groups, images of symbolic height or width, and numbers of results
    that are no multiple of eight.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        return rewritten(mod, _WindowsWrittenOut)


@mutator
class _WindowsWrittenOut(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not is_plain(call) or not _is_taken(call):
            return call
        image, weight = call.args
        out, channels, *window = dims_of(weight) or []
        terms = channels * prod(window)
        rows = self.builder_.emit(relax.op.reshape(weight, (out, terms, *[1] * len(window))))
        if more := -terms % VECTOR:
            pads = [0, 0, 0, more, *[0] * 2 * len(window)]
            rows = self.builder_.emit(relax.op.nn.pad(rows, pads))
        made, data, kernel = CONVOLUTIONS[name_of(call)]
        return made(
            self.builder_.emit_te(
                _written_out, image, window, call.attrs, primfunc_name_hint="windows"
            ),
            rows,
            data_layout=data,
            kernel_layout=kernel,
            out_dtype=call.attrs.out_dtype,
        )


def _written_out(image: Any, window: Sequence[int], attrs: Any) -> Any:
    """Pixels of a result, whose channels are the terms of their windows, and zeros behind them."""
    images, channels, *sizes = image.shape
    rank, terms = len(window), int(channels) * prod(window)
    steps, apart, pads = (
        [*map(int, one)] for one in (attrs.strides, attrs.dilation, attrs.padding)
    )
    reach = [(n - 1) * gap + 1 for n, gap in zip(window, apart, strict=True)]
    pixels = [
        (size_of(size) + pads[i] + pads[rank + i] - reach[i]) // steps[i] + 1
        for i, size in enumerate(sizes)
    ]

    def value(n: Any, term: Any, *pixel: Any) -> Any:
        inside, rest, place = [term < terms], term, list[Any]()
        for i in reversed(range(rank)):
            at = pixel[i] * steps[i] + rest % window[i] * apart[i] - pads[i]
            rest, place = rest // window[i], [at, *place]
            inside += [at >= 0, at < sizes[i]]
        zero, index = tirx.const(0, str(image.dtype)), (n, rest, *place)
        return tirx.if_then_else(tirx.all(*inside), image[index], zero)

    filled = -(-terms // VECTOR) * VECTOR
    return te.compute((images, filled, *pixels), value, name="windows")


def _is_taken(call: Any) -> bool:
    """Whether pixels of an image are no vectors, and a window has few terms."""
    _, channels, *window = dims_of(call.args[1]) or []
    _, _, *sizes = extents_of(call.args[0]) or ()
    if str(call.args[0].ty.dtype) not in NARROW_FLOATS:
        return False
    # Windows of images of any size would not reach warpgroups.
    if not all(isinstance(size_of(size), int) for size in sizes):
        return False
    return channels % VECTOR != 0 and 1 < prod(window) <= _MOST_TERMS // channels
