"""Convolutions of narrow groups become ones of fewer groups, as wide as tensor cores multiply."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from math import ceil
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.tirx import PrimFunc

from ..on_tensor_cores import multiplies
from ..relax_values import dims_of, extents_of, name_of, rewritten
from ..sums.widen_functions import legalize_ops
from ..sums.widen_sums import WidenSums
from ..tf32 import CONV, types_of
from .channels_last import ChannelsLast

#: Channels that are copied for a step of ``wgmma``, and columns of the narrowest usual tile.
_WIDE = 64
#: Channels of a vector of 16 bytes of 16 bits.
_VECTOR = 8


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.WideGroups")
class WideGroups:
    """Let several groups of a convolution be one, whose weights are zero between them.

    A ResNeXt has groups of 4 channels, and tensor cores multiply 64 of them in the same time:
    zeros cost nothing there, and a group alone would fill a sixteenth of a step. Weights that are
    constants are filled up while compiling. What is not finite in one group becomes NaN in those
    that are merged with it.

    Depthwise convolutions stay, and those that threads compute, where each multiplication counts:
    of ``float32`` but by ``tf32`` (:class:`.ChannelsLast`), of images of any height and width, and
    of GPUs older than ``sm_80``.
    """

    def __init__(self, tf32: Iterable[str] = ()) -> None:
        self.tf32 = frozenset(tf32)

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        return rewritten(mod, partial(_MergedGroups, tf32=self.tf32))


@mutator
class _MergedGroups(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, tf32: frozenset[str]) -> None:
        super().__init__(mod)
        self.tf32 = tf32

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        dims = dims_of(call.args[1]) if name_of(call) == "nn.conv2d" else None
        if dims is None or not _is_taken(call, dims, types_of(CONV, self.tf32)):
            return call
        groups = int(call.attrs.groups)
        merged = merged_groups(groups, dims[1], dims[0] // groups)
        shape = (dims[0], merged * dims[1], *dims[2:])
        if merged == 1 or not _multiplied(call, shape, groups // merged, self.tf32):
            return call
        weight = self._widened(call.args[1], dims, groups, merged)
        return _convolution(call, call.args[0], weight, groups // merged)

    def _widened(self, weight: Any, dims: Sequence[int], groups: int, merged: int) -> relax.Expr:
        """Weights of ``merged`` groups in the place of one, with zeros between them."""
        emit, (results, channels, *window) = self.builder_.emit, dims
        each = (groups // merged, merged, results // groups)
        apart = emit(relax.op.reshape(weight, (*each, 1, channels, *window)))
        own = np.eye(merged, dtype="bool").reshape(1, merged, 1, merged, 1, 1, 1)
        zero = relax.const(np.zeros((), str(weight.ty.dtype)))
        made = emit(relax.op.where(relax.const(own), apart, zero))
        return emit(relax.op.reshape(made, (results, merged * channels, *window)))


def _is_taken(call: Any, weight: Sequence[int], products: Sequence[str]) -> bool:
    """Whether a convolution has groups of several channels or results, of types of products."""
    attrs, groups = call.attrs, int(call.attrs.groups)
    if attrs.data_layout != "NCHW" or attrs.kernel_layout != "OIHW" or groups == 1:
        return False
    fits = all(str(one.ty.dtype) in products for one in call.args)
    return fits and (weight[1], weight[0] // groups) != (1, 1)


def _convolution(call: Any, image: Any, weight: Any, groups: int) -> relax.Call:
    """A convolution with the attributes of another one, but for its groups."""
    attrs = call.attrs
    return relax.op.nn.conv2d(
        image,
        weight,
        strides=attrs.strides,
        padding=attrs.padding,
        dilation=attrs.dilation,
        groups=groups,
        data_layout=attrs.data_layout,
        kernel_layout=attrs.kernel_layout,
        out_layout=attrs.out_layout,
        out_dtype=attrs.out_dtype,
    )


def _multiplied(call: Any, shape: Sequence[int], groups: int, tf32: frozenset[str]) -> bool:
    """Whether tensor cores multiply a convolution with weights of this shape in its place."""
    given = extents_of(call.args[0])
    if given is None:
        return False
    image, weight = (
        relax.Var(str(one.ty.dtype), relax.TensorType(own, str(one.ty.dtype)))
        for one, own in zip(call.args, (given, shape), strict=True)
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [image, weight]):
        with builder.dataflow():
            out = builder.emit_output(builder.emit(_convolution(call, image, weight, groups)))
        builder.emit_func_output(out)
    passes = [ChannelsLast(tf32), WidenSums(), legalize_ops(tf32)]
    lowered = tvm.transform.Sequential(passes)(builder.get())
    return any(multiplies(one) for one in lowered.functions.values() if isinstance(one, PrimFunc))


def merged_groups(groups: int, channels: int, results: int) -> int:
    """How many groups are merged for the fewest multiplications by tensor cores; 1 if none.

    ``channels`` and ``results`` are of a group.

    Examples
    --------
    >>> [merged_groups(*one) for one in ((32, 4, 4), (49, 16, 16), (64, 32, 32), (2, 64, 64))]
    [16, 7, 2, 1]
    """

    def multiplied(merged: int) -> tuple[int, int]:
        padded = ceil(merged * channels / _WIDE) * _WIDE
        return groups // merged * padded * max(_WIDE, merged * results), -merged

    legal = [
        merged
        for merged in range(1, groups + 1)
        if groups % merged == merged * channels % _VECTOR == merged * results % _VECTOR == 0
    ]
    return min(legal, key=multiplied, default=1)
