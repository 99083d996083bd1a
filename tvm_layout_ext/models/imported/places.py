"""Elements of a tensor by torch's indices, which count from the end where they are negative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx

from ...ir.queries import size_of
from ..relax_values import array_of, bound_to, name_of, source_of, whole_numbers

#: What leaves the numbers of an index as they are.
_SAME_NUMBERS = ("reshape", "expand_dims", "squeeze", "broadcast_to", "astype")


def place_of(builder: relax.BlockBuilder, data: Any, axis: int, at: int) -> relax.Expr:
    """Emit what a tensor has at one place of an axis; TVM 0.27 counts none from the end."""
    axis %= data.ty.ndim
    if at >= 0:
        return builder.emit(relax.op.take(data, relax.const(at, "int64"), axis))
    extent = data.ty.shape.values[axis]
    if isinstance(extent, tirx.IntImm):
        return builder.emit(relax.op.take(data, relax.const(int(extent) + at, "int64"), axis))
    part = relax.op.strided_slice(data, [axis], [extent + at], [extent + at + 1])
    return builder.emit(relax.op.squeeze(builder.emit(part), [axis]))


def indexed(builder: relax.BlockBuilder, data: Any, indices: Sequence[Any]) -> relax.Expr:
    """Emit ``data[indices]``, where None takes all of a dim, as torch orders the result's dims.

    Dims of the indices stand where the indexed ones did, if those are neighbours, else first.
    """
    axes, given, rest, first = _parts(builder, data, indices)
    if len(axes) == 1:
        return builder.emit(relax.op.take(data, given[0], axis=axes[0]))
    if axes != [*range(len(axes))]:
        data = builder.emit(relax.op.permute_dims(data, [*axes, *rest]))
    found = builder.emit(relax.op.index_tensor(data, given))
    if not first:
        return found
    dims = [*range(found.ty.ndim)]
    here, others = dims[: -len(rest)], dims[-len(rest) :]
    order = [*others[:first], *here, *others[first:]]
    return builder.emit(relax.op.permute_dims(found, order))


def put(
    builder: relax.BlockBuilder, data: Any, indices: Sequence[Any], values: Any, adds: bool
) -> relax.Expr:
    """Emit a tensor with other values at ``indices``; TVM's operator wants one for each dim."""
    axes, given, rest, first = _parts(builder, data, indices)
    extents, emit = data.ty.shape.values, builder.emit
    here = _together([[*one.ty.shape.values] for one in given])
    places: dict[int, Any] = dict(zip(axes, given, strict=True))
    if rest:
        for axis, one in places.items():
            shape = [*one.ty.shape.values, *[1] * len(rest)]
            places[axis] = emit(relax.op.reshape(one, shape))
        others = [extents[axis] for axis in rest]
        whole = [*others[:first], *here, *others[first:]]
        values = emit(relax.op.broadcast_to(values, whole))
        order = [*range(first, first + len(here))]
        order += [at for at in range(len(whole)) if at not in order]
        values = emit(relax.op.permute_dims(values, order))
    for at, axis in enumerate(rest):
        count = emit(relax.op.arange(0, extents[axis], 1, "int64"))
        shape = [extents[axis], *[1] * (len(rest) - 1 - at)]
        places[axis] = emit(relax.op.reshape(count, shape))
    ordered = relax.Tuple([places[axis] for axis in range(len(places))])
    return emit(relax.op.index_put(data, ordered, values, adds))


def _together(shapes: list[list[Any]]) -> list[Any]:
    """The shape to which others are repeated; what is not 1 is the extent."""
    rank = max(map(len, shapes))
    columns = zip(*([1] * (rank - len(one)) + one for one in shapes), strict=True)
    return [next((n for n in one if size_of(n) != 1), 1) for one in columns]


def _parts(
    builder: relax.BlockBuilder, data: Any, indices: Sequence[Any]
) -> tuple[list[int], list[Any], list[int], int]:
    """Dims that are indexed, by what, the others, and behind how many of these it stands."""
    axes = [at for at, one in enumerate(indices) if one is not None]
    given = [counted_up(builder, indices[at], data.ty.shape.values[at]) for at in axes]
    rest = [at for at in range(data.ty.ndim) if at not in axes]
    are_neighbours = axes == [*range(axes[0], axes[0] + len(axes))]
    return axes, given, rest, axes[0] if are_neighbours else 0


def counted_up(builder: relax.BlockBuilder, index: Any, extent: Any) -> Any:
    """An index from the front: TVM 0.27 reads before a tensor where an index is negative."""
    kind = str(index.ty.dtype)
    if kind in ("bool", "uint8"):
        raise ValueError("a mask as an index takes any number of elements; use torch.where")
    known = array_of(index, builder.lookup_binding)
    if known is not None and isinstance(extent, tirx.IntImm):
        up = np.where(known < 0, known + int(extent), known).astype(kind)
        return index if (up == known).all() else relax.const(up, kind)
    if _counts_up(builder, index):
        return index
    if isinstance(extent, tirx.IntImm):
        size = relax.const(int(extent), kind)
    else:  # In Relax only an operator makes a tensor of a symbolic number.
        size = builder.emit(relax.op.arange(extent, extent + 1, 1, kind))
    below = builder.emit(relax.op.less(index, relax.const(0, kind)))
    return builder.emit(relax.op.where(below, builder.emit(relax.op.add(index, size)), index))


def _counts_up(builder: relax.BlockBuilder, index: Any) -> bool:
    """Whether an index is a row of numbers from 0 on."""

    def bound(value: Any) -> Any:
        return bound_to(value, builder.lookup_binding)

    source = bound(source_of(index, _SAME_NUMBERS, bound))
    if name_of(source) != "arange":
        return False
    begin = whole_numbers(source.args[:1])
    return begin is not None and begin[0] >= 0
