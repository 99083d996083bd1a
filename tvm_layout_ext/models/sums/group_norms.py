"""Group norms of images of symbolic sizes are two functions: sums of the groups, and the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import tvm
from tvm import relax, te, tirx, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...ir.queries import size_of
from ..relax_values import (
    FLOATS,
    NARROW_FLOATS,
    bound_in_reach,
    extents_of,
    name_of,
    operators_of,
    rewritten,
)


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.GroupNormsInSteps")
class GroupNormsInSteps:
    """Add up the groups of a norm as rows of a view, where several dims are summed, some symbolic.

    ::

        x: (n, c, h, w)             ->      rows = view of x: (n, groups, c / groups * h * w)
                                            sums of rows and of their squares: (n, groups)

    TVM's operator reads the image through a reshape, by quotients of symbolic sizes, and sums over
    several axes of it, which threads cannot share out. Here a block's threads share out one axis.
    Of channels that are last, the pixels of a view are one axis and the channels another one. All
    is computed in ``float32``, and rounded once; an instance norm is one of as many groups as
    channels.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        if operators_of(mod).isdisjoint(_NORMS):
            return mod
        return relax.transform.DeadCodeElimination()(rewritten(mod, _GroupsApart))


_NORMS = ("nn.group_norm", "nn.instance_norm")


@mutator
class _GroupsApart(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        groups = _groups_of(call) if name_of(call) in _NORMS else None
        if groups is None:
            return call
        narrow = widened_from(call.args[0], self.lookup_binding)
        value = call.args[0] if narrow is None else narrow
        emit, attrs = self.builder_.emit, call.attrs
        view = emit(relax.op.reshape(value, groups.view))
        both = partial(_sums, summed=groups.summed)
        sums = self.builder_.emit_te(both, view, primfunc_name_hint="group_sums")
        totals = [emit(relax.TupleGetItem(sums, i)) for i in range(2)]
        given = (value, *totals, *call.args[1:])
        epsilon, dtype = float(attrs.epsilon), str(call.ty.dtype)
        norm = partial(_normed, groups=groups, epsilon=epsilon, dtype=dtype)
        return self.builder_.call_te(norm, *given, primfunc_name_hint="group_norm")


def widened_from(value: Any, binding: Callable[[Any], Any]) -> Any:
    """The value of 16 bits that one is cast from, within reach of its readers, or None."""
    cast = bound_in_reach(value, binding)
    is_cast = name_of(cast) == "astype" and str(cast.args[0].ty.dtype) in NARROW_FLOATS
    return cast.args[0] if is_cast else None


class _Groups(NamedTuple):
    """How a norm's groups lie in a view of its image, of which some axes are summed."""

    channel: int
    each: int  #: Channels of a group
    batch: list[int]  #: Axes of the image that no group has several elements of
    pixels: list[int]  #: Axes that a group has all elements of
    view: list[Any]
    summed: list[int]


def _groups_of(call: relax.Call) -> _Groups | None:
    """The groups of a norm that sums several dims, some symbolic; else None."""
    sizes, attrs = extents_of(call.args[0]), call.attrs
    if sizes is None or str(call.ty.dtype) not in FLOATS:
        return None
    channel = int(attrs.channel_axis) % len(sizes)
    axes = sorted(int(axis) % len(sizes) for axis in attrs.axes)
    axes = [axis for axis in axes if axis != channel]
    channels = size_of(sizes[channel])
    symbolic = [axis for axis in axes if not isinstance(size_of(sizes[axis]), int)]
    if not symbolic or not isinstance(channels, int):
        return None
    count = int(attrs.num_groups) if name_of(call) == "nn.group_norm" else channels
    each, pixels = channels // count, prod(sizes[axis] for axis in axes)
    if (each if channel < axes[0] else 1) == 1 and len(axes) == 1:
        return None
    first, last = min(channel, axes[0]), len(sizes)
    batch = list(range(first))
    lead = [sizes[axis] for axis in batch]
    if [channel, *axes] == list(range(first, last)):
        return _Groups(channel, each, batch, axes, [*lead, count, each * pixels], [first + 1])
    if [*axes, channel] == list(range(first, last)):
        view = [*lead, pixels, count, each]
        return _Groups(channel, each, batch, axes, view, [first, first + 2])
    return None


def _sums(view: te.Tensor, summed: Sequence[int]) -> list[te.Tensor]:
    """Sums over some axes of what a view has, and of its squares."""
    add = te.comm_reducer(
        lambda one, other: (one[0] + other[0], one[1] + other[1]),
        lambda *dtypes: tuple(tirx.const(0, dtype) for dtype in dtypes),
        name="add_both",
    )
    # Of bfloat16 in a sum to two results TVM 0.27's code for the CPU adds up the bits.
    wide = topi.cast(view, "float32")
    along = [te.reduce_axis((0, view.shape[axis]), f"k{axis}") for axis in summed]
    kept = [axis for axis in range(len(view.shape)) if axis not in summed]

    def both(*at: Any) -> Any:
        places = dict(zip(kept, at, strict=True)) | dict(zip(summed, along, strict=True))
        element = wide(*(places[axis] for axis in range(len(places))))
        return add((element, element * element), axis=along)

    return list(te.compute([view.shape[axis] for axis in kept], both, name="group_sums"))


def _normed(
    x: te.Tensor,
    total: te.Tensor,
    squares: te.Tensor,
    gamma: te.Tensor,
    beta: te.Tensor,
    *,
    groups: _Groups,
    epsilon: float,
    dtype: str,
) -> te.Tensor:
    """What a norm makes of an image, by the sums of its groups."""
    elements = groups.each * prod(x.shape[axis] for axis in groups.pixels)
    count = tirx.Cast("float32", elements)

    def element(*at: Any) -> Any:
        channel = at[groups.channel]
        group = [*(at[axis] for axis in groups.batch), channel // groups.each]
        mean = total(*group) / count
        # Of numbers that are all but equal the difference may be below 0.
        variance = te.max(squares(*group) / count - mean * mean, tirx.const(0, "float32"))
        scale, shift = (one(channel).astype("float32") for one in (gamma, beta))
        value = (x(*at).astype("float32") - mean) * te.rsqrt(variance + epsilon) * scale + shift
        return value.astype(dtype)

    return te.compute(x.shape, element, name="group_norm")
