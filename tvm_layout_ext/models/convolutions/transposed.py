"""Transposed convolutions become convolutions whose results are moved."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...ir.queries import is_number, size_of
from ..imported.places import part_of
from ..relax_values import (
    bound_to,
    dims_of,
    extents_of,
    has_shape,
    name_of,
    operators_of,
    rewritten,
)

#: By operator, the layouts that are taken, and the convolution that takes their place.
_TAKEN = {
    "nn.conv1d_transpose": (("NCW", "IOW", "NCW"), relax.op.nn.conv1d),
    "nn.conv2d_transpose": (("NCHW", "IOHW", "NCHW"), relax.op.nn.conv2d),
    "nn.conv3d_transpose": (("NCDHW", "IODHW", "NCDHW"), relax.op.nn.conv3d),
}
#: What moves the elements of such a convolution's result.
_MOVES = ("reshape", "permute_dims", "strided_slice")


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.TransposedConvolutions")
class TransposedConvolutions:
    """Compute the pixels between two steps of a transposed convolution as channels of one pixel.

    A step of ``s`` pixels by a window of ``k`` gives ``s`` results a pixel, each of ``k / s`` terms
    of the image: a convolution of ``s`` times the channels by steps of 1, whose window is ``k / s``
    pixels, turned around. Its channels then become pixels. So tensor cores multiply it, and none
    of the zeros that a transposed convolution has between pixels. Where ``s`` does not divide ``k``
    the window is filled up with zeros, by which what is not finite becomes NaN.

    Leaves alone: dilation, and layouts other than PyTorch's.

    The identity is that of sub-pixel convolutions (Shi et al., 2016, arXiv:1609.07009).
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        if operators_of(mod).isdisjoint(_TAKEN):
            return mod
        return rewritten(mod, _PixelsAsChannels)


@mutator
class _PixelsAsChannels(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        #: Of each convolution that was made its groups, and how many operators move its results.
        self._made: dict[Any, tuple[int, int]] = {}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if name_of(call) == "astype":
            return self._cast_before(call)
        return self._convolution(call) if name_of(call) in _TAKEN and _is_taken(call) else call

    def _cast_before(self, cast: relax.Call) -> relax.Expr:
        """Sums that are moved and then cast as moved elements of the type that they are cast to.

        What is added to each channel in between is added before.
        """
        value = bound_to(cast.args[0], self.lookup_binding)
        added = value if name_of(value) == "add" else None
        moves, deep = self._moved(cast.args[0] if added is None else added.args[0])
        convolution = bound_to(deep, self.lookup_binding)
        if not moves or f"{name_of(convolution)}_transpose" not in _TAKEN:
            return cast
        found = deep
        if added is not None:
            bias = self._deepened(added, deep, len(moves))
            if bias is None:
                return cast
            found = self.builder_.emit(relax.op.add(found, bias))
        found = relax.op.astype(found, cast.attrs.dtype)
        for move in reversed(moves):
            given = [self.builder_.emit(found), *move.args[1:]]
            found = relax.Call(move.op, given, move.attrs, move.ty_args)
        return found

    def _moved(self, value: Any) -> tuple[list[relax.Call], Any]:
        """What moves elements of a value, the last first, and the value before."""
        moves = list[relax.Call]()
        while name_of(call := bound_to(value, self.lookup_binding)) in _MOVES:
            moves.append(call)
            value = call.args[0]
        return moves, value

    def _deepened(self, added: relax.Call, deep: Any, moves: int) -> relax.Expr | None:
        """What is added to each channel of a result, for all places of a step; None of others.

        Behind other moves than those of this pass nobody knows which dim has the channels.
        """
        groups, own = self._made.get(deep, (0, 0))
        moved, shape = extents_of(added.args[0]) or (), extents_of(added.args[1]) or ()
        if not groups or own != moves or not has_shape(added, moved):
            return None
        channels = int(moved[1])
        ones = [1 if i != 1 else channels for i in range(len(moved))]
        if len(shape) != len(moved) or not all(map(is_number, shape, ones)):
            return None
        emit, each = self.builder_.emit, channels // groups
        places, bias = int((extents_of(deep) or ())[1]) // channels, added.args[1]
        bias = emit(relax.op.reshape(bias, (groups, 1, each)))
        bias = emit(relax.op.broadcast_to(bias, (groups, places, each)))
        return emit(relax.op.reshape(bias, (1, places * channels, *[1] * (len(shape) - 2))))

    def _convolution(self, call: relax.Call) -> relax.Expr:
        image, weight = call.args
        window = [int(one) for one in extents_of(weight)[2:]]  # type: ignore[index]
        sizes = [size_of(one) for one in extents_of(image)[2:]]  # type: ignore[index]
        attrs, rank = call.attrs, len(sizes)
        steps, groups = [int(one) for one in attrs.strides], int(attrs.groups)
        # Of one pixel no step is made: by those of a whole window each result has one term.
        pairs = zip(sizes, window, steps, strict=True)
        steps = [k if isinstance(n, int) and n == 1 else s for n, k, s in pairs]
        terms = [-(-k // s) for k, s in zip(window, steps, strict=True)]
        before, after = (
            [int(one) for one in part] for part in (attrs.padding[:rank], attrs.padding[rank:])
        )
        more = [int(one) for one in attrs.output_padding]
        rows = zip(sizes, steps, before, after, window, more, strict=True)
        results = [(n - 1) * s - b - a + k + m for n, s, b, a, k, m in rows]
        # Pixels beyond the image by which results are computed, as others before it.
        ends = zip(window, after, more, steps, strict=True)
        beyond = [-(-(k - a + m) // s) - 1 for k, a, m, s in ends]
        begins = [one - 1 for one in terms]
        if max(steps) == 1 and all(map(int.__ge__, begins, before)):
            # A pixel a step: what would be cut off is not computed.
            begins, before = [*map(int.__sub__, begins, before)], [0] * rank
        _, convolve = _TAKEN[name_of(call)]
        deep = convolve(
            image,
            self._weight(weight, groups, terms, steps),
            padding=[*begins, *(max(0, one) for one in beyond)],
            groups=groups,
            out_dtype=attrs.out_dtype,
        )
        deep = self.builder_.emit(deep)
        found = self._pixels(deep, groups, steps, before, results)
        self._made[deep] = groups, len(self._moved(found)[0])
        return found

    def _weight(
        self, weight: Any, groups: int, terms: Sequence[int], steps: Sequence[int]
    ) -> relax.Expr:
        """Weights by groups, places of a step and channels, of turned windows of so many terms."""
        emit, rank = self.builder_.emit, len(steps)
        inner, outer, *window = (int(one) for one in extents_of(weight) or ())
        ends = [t * s - k for t, s, k in zip(terms, steps, window, strict=True)]
        if any(ends):
            weight = emit(relax.op.nn.pad(weight, [0, 0, 0, 0, *_between(0, ends)]))
        pairs = [one for pair in zip(terms, steps, strict=True) for one in pair]
        weight = emit(relax.op.reshape(weight, (groups, inner // groups, outer, *pairs)))
        for axis in range(rank):
            weight = emit(relax.op.flip(weight, 3 + 2 * axis))
        places, turned = range(4, 4 + 2 * rank, 2), range(3, 3 + 2 * rank, 2)
        weight = emit(relax.op.permute_dims(weight, [0, *places, 2, 1, *turned]))
        count = groups * outer * prod(steps)
        return emit(relax.op.reshape(weight, (count, inner // groups, *terms)))

    def _pixels(
        self,
        deep: Any,
        groups: int,
        steps: Sequence[int],
        before: Sequence[int],
        results: Sequence[Any],
    ) -> relax.Expr:
        """Channels of a pixel as the pixels of a step, without those that are cut off."""
        emit, rank = self.builder_.emit, len(steps)
        first, channels, *pixels = extents_of(deep) or ()
        sizes = [size_of(n) * s for n, s in zip(pixels, steps, strict=True)]
        if max(steps) > 1:
            outer = int(channels) // groups // prod(steps)
            deep = emit(relax.op.reshape(deep, (first, groups, *steps, outer, *pixels)))
            pairs = [one for at in range(rank) for one in (3 + rank + at, 2 + at)]
            deep = emit(relax.op.permute_dims(deep, [0, 1, 2 + rank, *pairs]))
            deep = emit(relax.op.reshape(deep, (first, groups * outer, *sizes)))
        analyzer = tvm.sym.Analyzer()
        if all(map(analyzer.can_prove_equal, sizes, results)):
            return deep
        if not all(isinstance(size, int) for size in sizes):
            for at, (begin, size) in enumerate(zip(before, results, strict=True)):
                deep = part_of(self.builder_, deep, 2 + at, begin, size)
            return deep
        ends = [b + out for b, out in zip(before, results, strict=True)]
        return relax.op.strided_slice(deep, [*range(2, 2 + rank)], [*before], ends)


def _between(value: int, others: Sequence[int]) -> list[int]:
    """Others, each behind a value."""
    return [one for other in others for one in (value, other)]


def _is_taken(call: Any) -> bool:
    """Whether layouts are PyTorch's, windows are dense, and those of weights are known."""
    attrs, (image, weight) = call.attrs, call.args
    layouts = tuple(str(getattr(attrs, f"{one}_layout")) for one in ("data", "kernel", "out"))
    if layouts != _TAKEN[name_of(call)][0] or any(int(one) != 1 for one in attrs.dilation):
        return False
    sizes = (extents_of(image) or ())[2:]
    return bool(sizes) and dims_of(weight) is not None and len(attrs.padding) == 2 * len(sizes)
