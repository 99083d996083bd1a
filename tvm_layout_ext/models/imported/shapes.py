"""Views, slices and sizes of ``torch.export`` in Relax, in the shapes that torch has for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import SymFloat, SymInt, fx
from tvm import relax, tirx

from ..relax_values import extents_of
from .arithmetic import Converter
from .places import part_of
from .sizes import is_symbolic

#: Operators that TVM 0.27 works out a shape of by itself, or cannot where one is symbolic.
_SHAPED = {
    **dict.fromkeys(("view.default", "reshape.default", "unflatten.int"), relax.op.reshape),
    "expand.default": relax.op.broadcast_to,
}
#: Operators that resize images, and how; behind a size they have the factors of both dims.
_RESIZED = {
    "upsample_bilinear2d.vec": "linear",
    "upsample_nearest2d.vec": "nearest_neighbor",
    "upsample_bicubic2d.vec": "cubic",
}
#: Operators of sizes.
_OF_SIZES = (
    *("add", "sub", "mul", "neg", "floordiv", "truediv", "mod", "pow", "pow_by_natural"),
    *("sym_max", "sym_min", "sym_float"),
)


class Shapes:
    """Conversions of nodes, by values, sizes and the builder of an importer.

    Where every size is known, they are TVM's.
    """

    def __init__(self, importer: Any, stock: Mapping[str, Converter]) -> None:
        self._importer, self._stock = importer, stock

    def converters(self) -> dict[str, Converter]:
        """Conversions by the operators' names in a graph."""
        found: dict[str, Converter] = {
            name: partial(self._shaped, op, self._stock[name])
            for name, op in _SHAPED.items()
            if name in self._stock
        }
        found |= {
            name: partial(self._resized, how, self._stock[name])
            for name, how in _RESIZED.items()
            if name in self._stock
        }
        own = {"slice.Tensor": self._slice, "repeat.default": self._repeat}
        found |= {name: partial(one, self._stock[name]) for name, one in own.items()}
        counted = partial(self._counted, self._stock["arange.start_step"])
        return found | {"unfold.default": self._unfold, "arange.start_step": counted}

    def of_sizes(self) -> dict[str, Converter]:
        """Conversions of what gives no tensor, but a size."""
        names = ("sym_size.int", *_OF_SIZES)
        return {name: partial(self._size, self._stock.get(name)) for name in names}

    def _emit(self, value: Any) -> Any:
        return self._importer.block_builder.emit(value)

    def _known(self, node: Any) -> list[Any] | None:
        """The extents of a node of symbolic sizes, if they are known by those of inputs."""
        return self._importer.sizes.shape_of(node) if is_symbolic(node.meta["val"]) else None

    def _size(self, stock: Converter | None, node: Any) -> Any:
        """A size, as torch works it out."""
        size = node.meta["val"]
        if isinstance(size, int | float):
            return size
        if isinstance(size, SymInt | SymFloat):
            return self._importer.sizes.of(size)
        if stock is None:
            raise ValueError(f"TVM has no {node.target}")
        return stock(node)

    def _shaped(self, op: Any, stock: Converter, node: Any) -> Any:
        """A view or a repetition in the shape that torch has for it."""
        shape, data = self._known(node), self._importer.env[node.args[0]]
        if shape is None:
            return stock(node)
        same = self._importer.sizes.are_equal(extents_of(data), shape)
        return data if same else self._emit(op(data, shape))

    def _resized(self, how: str, stock: Converter, node: Any) -> Any:
        """Images of another size, which a size or whole factors tell.

        Of the pixels that are nearest to one TVM 0.27 takes those in the middle, torch the first.
        """
        data, factors = self._importer.env[node.args[0]], node.args[-1] or ()
        shape, corners, rounding = self._importer.sizes.shape_of(node), "half_pixel", {}
        if shape is None or any(factor != int(factor) for factor in factors):
            return stock(node)
        if how == "nearest_neighbor" and not factors and not _are_multiples(data, shape):
            if not is_symbolic(node.meta["val"]) and is_symbolic(node.args[0].meta["val"]):
                raise ValueError("an image of a symbolic size has nearest pixels of no known one")
            corners, rounding = "asymmetric", {"rounding_method": "floor"}
        elif not is_symbolic(node.meta["val"]):
            return stock(node)
        elif node.args[2] is True:
            corners = "align_corners"
        given = {"layout": "NCHW", "method": how, "coordinate_transformation_mode": corners}
        return self._emit(relax.op.image.resize2d(data, shape[2:], **given, **rounding))

    def _slice(self, stock: Converter, node: Any) -> Any:
        """A part of a dim; of a symbolic one TVM 0.27 takes the ends to be cut off."""
        given: tuple[Any, ...] = (*node.args[1:], *(0, None, None, 1)[len(node.args) - 1 :])
        dim, begin, end, step = given
        around = node.args[0].meta["val"].shape[dim]
        if not any(map(is_symbolic, [around, *map(_value_of, (begin, end))])):
            return stock(node)
        sizes, data = self._importer.sizes, self._importer.env[node.args[0]]
        extent, size = (sizes.of(one.meta["val"].shape[dim]) for one in (node.args[0], node))
        begin = _value_of(begin)
        first = self._from_the_front(0 if begin is None else begin, extent)
        if step == 1 and sizes.are_equal([size], [extent]):
            return data
        return part_of(self._importer.block_builder, data, dim % data.ty.ndim, first, size, step)

    def _from_the_front(self, begin: Any, extent: Any) -> Any:
        """Where a slice begins that may be counted from the end."""
        if isinstance(begin, int):
            return begin if begin >= 0 else extent + begin
        is_behind, found = begin.node.expr.is_negative, self._importer.sizes.of(begin)
        if is_behind is None:
            return tirx.Select(found < 0, found + extent, found)
        return found + extent if is_behind else found

    def _counted(self, stock: Converter, node: Any) -> Any:
        """Numbers at a distance; TVM 0.27 counts those wrong that go down."""
        given = [*node.args, 1][:3]
        if not all(isinstance(one, int | float) for one in given) or given[2] > 0:
            return stock(node)
        numbers = np.arange(*given)[: node.meta["val"].shape[0]]
        return relax.const(numbers, self._importer._convert_data_type(node.meta["val"].dtype))

    def _unfold(self, node: Any) -> Any:
        """Windows along a dim, whose elements are the last dim."""
        tensor, dim, size, step = node.args
        data = self._importer.env[tensor]
        dim, wanted = dim % max(data.ty.ndim, 1), node.meta["val"]
        if is_symbolic(wanted):
            raise ValueError("unfold has known sizes alone")
        starts = step * np.arange(wanted.shape[dim])
        numbers = relax.const(starts[:, None] + np.arange(size), "int64")
        windows = self._emit(relax.op.take(data, numbers, dim))
        order = [at for at in range(wanted.ndim) if at != dim + 1]
        return self._emit(relax.op.permute_dims(windows, [*order, dim + 1]))

    def _repeat(self, stock: Converter, node: Any) -> Any:
        """A tensor a number of times along dims; symbolic numbers are of dims of one element."""
        data, counts = node.args[0], [_value_of(one) for one in node.args[1]]
        own: tuple[Any, ...] = tuple(data.meta["val"].shape)
        sizes = (*[1] * (len(counts) - len(own)), *own)
        shape = self._known(node)
        pairs = [*zip(counts, sizes, strict=True)]
        if shape is None or any(is_symbolic(count) and size != 1 for count, size in pairs):
            return stock(node)
        known = [1 if is_symbolic(count) else count for count in counts]
        found = self._importer.env[data]
        if any(count != 1 for count in known):
            found = self._emit(relax.op.tile(found, known))
        return self._emit(relax.op.broadcast_to(found, shape))


def _are_multiples(data: Any, shape: Sequence[Any]) -> bool:
    """Whether each extent of a shape is a known number of times that of a tensor."""
    pairs = zip(extents_of(data) or (), shape, strict=False)
    return all(
        isinstance(a, tirx.IntImm) and isinstance(b, tirx.IntImm) and int(b) % int(a) == 0
        for a, b in pairs
    )


def _value_of(one: Any) -> Any:
    """What torch has for an argument that may be a node."""
    return one.meta["val"] if isinstance(one, fx.Node) else one
