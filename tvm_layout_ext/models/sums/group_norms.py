"""Group norms of large images, and of symbolic sizes, are two functions: their sums, and the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import tvm
from tvm import relax, te, tirx, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...ir.evaluate import placeholder_extent
from ...ir.queries import size_of
from ..relax_values import (
    FLOATS,
    NARROW_FLOATS,
    bound_in_reach,
    calls_operator,
    extents_of,
    name_of,
    rewritten,
)

#: Elements of an image whose channels are last, of known size, for which a norm has steps.
_LEAST = 1 << 22


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.GroupNormsInSteps")
class GroupNormsInSteps:
    """Make a factor and a summand of each channel first, of sums over the groups of a norm.

    ::

        x: (n, c, h, w)             ->      rows = view of x: (n, groups, c / groups * h * w)
                                            sums of rows and of their squares: (n, groups)
                                            of these a factor and a summand: (2, n, c)
                                            x * factor + summand

    Where several dims are summed, some symbolic, TVM's operator reads the image through a reshape,
    by quotients of symbolic sizes, and sums over several axes of it, which threads cannot share
    out. Here a block's threads share out one axis. Of channels that are last, the pixels of a view
    are one axis and the channels another one. Such an image of many elements has steps, too, if its
    size is known: two volumes of 96 x 96 x 96 of 32 channels took 134 us while each element had
    its quotients and root (H200). All is computed in ``float32``, and rounded once; an instance
    norm is one of as many groups as channels.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        if not any(calls_operator(mod, name) for name in _NORMS):
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
        view = self.builder_.emit(relax.op.reshape(value, groups.view))
        made = partial(_factors, groups=groups, epsilon=float(call.attrs.epsilon))
        given = (view, *call.args[1:])
        factors = self.builder_.emit_te(made, *given, primfunc_name_hint="group_factors")
        norm = partial(_normed, groups=groups, dtype=str(call.ty.dtype))
        return self.builder_.call_te(norm, value, factors, primfunc_name_hint="group_norm")


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
    view: list[Any]
    summed: list[int]


def _groups_of(call: relax.Call) -> _Groups | None:
    """The groups of a norm that shall have steps, or None."""
    sizes, attrs = extents_of(call.args[0]), call.attrs
    if sizes is None or str(call.ty.dtype) not in FLOATS:
        return None
    channel = int(attrs.channel_axis) % len(sizes)
    axes = sorted(int(axis) % len(sizes) for axis in attrs.axes)
    axes = [axis for axis in axes if axis != channel]
    channels = size_of(sizes[channel])
    symbolic = [axis for axis in axes if not isinstance(size_of(sizes[axis]), int)]
    is_large = channel > axes[-1] and prod(map(placeholder_extent, sizes)) >= _LEAST
    if not (symbolic or is_large) or not isinstance(channels, int):
        return None
    count = int(attrs.num_groups) if name_of(call) == "nn.group_norm" else channels
    each, pixels = channels // count, prod(sizes[axis] for axis in axes)
    if (each if channel < axes[0] else 1) == 1 and len(axes) == 1:
        return None
    first, last = min(channel, axes[0]), len(sizes)
    batch = list(range(first))
    lead = [sizes[axis] for axis in batch]
    if [channel, *axes] == list(range(first, last)):
        return _Groups(channel, each, batch, [*lead, count, each * pixels], [first + 1])
    if [*axes, channel] == list(range(first, last)):
        view = [*lead, pixels, count, each]
        return _Groups(channel, each, batch, view, [first, first + 2])
    return None


def _factors(
    view: te.Tensor, gamma: te.Tensor, beta: te.Tensor, *, groups: _Groups, epsilon: float
) -> te.Tensor:
    """By what each channel of an image is multiplied, and then what is added to it."""
    total, squares = _sums(view, groups.summed)
    count = tirx.Cast("float32", prod(view.shape[axis] for axis in groups.summed))
    lead = len(groups.batch)

    def factor(which: Any, *at: Any) -> Any:
        group, channel = (*at[:lead], at[lead] // groups.each), at[lead]
        mean = total(*group) / count
        # Of numbers that are all but equal the difference may be below 0.
        variance = te.max(squares(*group) / count - mean * mean, tirx.const(0, "float32"))
        scale, shift = (one(channel).astype("float32") for one in (gamma, beta))
        scale = te.rsqrt(variance + epsilon) * scale
        return tirx.Select(which == 0, scale, shift - mean * scale)

    shape = (2, *total.shape[:lead], gamma.shape[0])
    return te.compute(shape, factor, name="group_factors")


def _sums(view: te.Tensor, summed: Sequence[int]) -> Sequence[te.Tensor]:
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

    found: Sequence[te.Tensor] = te.compute(
        [view.shape[axis] for axis in kept], both, name="group_sums"
    )
    return found


def _normed(x: te.Tensor, factors: te.Tensor, *, groups: _Groups, dtype: str) -> te.Tensor:
    """An image, each channel multiplied by its factor, and its summand added."""

    def element(*at: Any) -> Any:
        channel = (*(at[axis] for axis in groups.batch), at[groups.channel])
        value = x(*at).astype("float32") * factors(0, *channel) + factors(1, *channel)
        return value.astype(dtype)

    return te.compute(x.shape, element, name="group_norm")
