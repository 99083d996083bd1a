"""Convolutions of few channels, by steps of one pixel, have whole vectors of channels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from math import prod
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...gpu.halos import best_halo
from ...ir.evaluate import placeholder_extent
from ..relax_values import dims_of, extents_of, name_of, rewritten
from ..tf32 import CONV, types_of
from .space_to_depth import CONVOLUTIONS, VECTOR, is_plain


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.PadChannels")
class PadChannels:
    """Fill channels up to eight, or a multiple, where a window has several places.

    TMA copies no pixels of 3 channels, nor of the 4 of a latent image; of eight a tile's are copied
    once, with a halo. Of 16 images of 112x112, 8 channels to 32 took 16 us by 3x3, those of 3
    channels by ``mma.sync`` over 20 (H200). What fills the image up goes with its permutation.

    Where there is no room for a halo it is worth it, too: of 224x224 pixels, 3 channels to 64 took
    22 us by 7x7, and 57 as they were. Not so of places that are far apart: by 3x3 of every sixth
    pixel 11 us and 5.

    Leaves alone: ``float32`` but by ``tf32`` (:class:`.ChannelsLast`), groups, steps of several
    pixels (:class:`.SpaceToDepth` has those), and numbers of results that are no multiple of eight.
    """

    def __init__(self, tf32: Iterable[str] = ()) -> None:
        self.types = types_of(CONV, tf32)

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        return rewritten(mod, partial(_Padded, products=self.types))


@mutator
class _Padded(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, products: Sequence[str]) -> None:
        super().__init__(mod)
        self.products = products

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not is_plain(call):
            return call
        self.builder_.normalize(call)
        if not _is_taken(call, self.products):
            return call
        _, channels, *window = dims_of(call.args[1]) or []
        pads = [0, 0, 0, -channels % VECTOR, *[0] * 2 * len(window)]
        image, weight = (self.builder_.emit(relax.op.nn.pad(one, pads)) for one in call.args)
        made, data, kernel = CONVOLUTIONS[name_of(call)]
        return made(
            image,
            weight,
            strides=call.attrs.strides,
            padding=call.attrs.padding,
            dilation=call.attrs.dilation,
            data_layout=data,
            kernel_layout=kernel,
            out_dtype=call.attrs.out_dtype,
        )


def _is_taken(call: Any, products: Sequence[str]) -> bool:
    """Whether pixels are no vectors, and places of a window share them."""
    attrs, (_, channels, *window) = call.attrs, dims_of(call.args[1]) or (0, 0)
    if str(call.args[0].ty.dtype) not in products or max(map(int, attrs.strides)) > 1:
        return False
    apart = [*map(int, attrs.dilation)]
    is_worth_it = max(apart) == 1 or _has_halo(call, window, apart)
    return channels % VECTOR != 0 and prod(window) > 1 and is_worth_it


def _has_halo(call: Any, window: Sequence[int], apart: Sequence[int]) -> bool:
    """Whether places that are apart are read from the pixels of a tile, and few around them."""
    first, _, *pixels = map(placeholder_extent, extents_of(call) or (1, 1))
    return best_halo((first, *pixels), window, [*enumerate(apart, 1)]) is not None
