"""Elements of a tensor by torch's indices, which count from the end where they are negative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx

from ...ir.queries import size_of
from ..known_values import array_of
from ..relax_values import NARROW_FLOATS, bound_to, name_of, source_of, whole_numbers

#: Rows that are gathered for one place at most, where each of known indices adds to what is there.
_MOST_WRITERS = 16
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
    return builder.emit(relax.op.squeeze(part_of(builder, data, axis, extent + at, 1), [axis]))


def part_of(
    builder: relax.BlockBuilder, data: Any, axis: int, begin: Any, size: Any, step: int = 1
) -> relax.Expr:
    """Emit ``size`` elements of an axis, every ``step``-th of them from ``begin`` on.

    Where the axis is symbolic, TVM 0.27 gives a slice an extent that is cut off at its ends.
    """
    known = [size_of(one) for one in (begin, size)]
    if all(isinstance(one, int) for one in known):
        first, count = known
        numbers = relax.const(first + step * np.arange(count), "int64")
    else:
        numbers = builder.emit(relax.op.arange(begin, begin + size * step, step, "int64"))
    return builder.emit(relax.op.take(data, numbers, axis))


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
    """Emit a tensor with other values at ``indices``; TVM's operator wants one for each dim.

    Where the indices are known, as those that put patches of an image together, elements are
    gathered: each place reads what is written there.
    """
    axes, given, rest, first = _parts(builder, data, indices)
    extents, emit = data.ty.shape.values, builder.emit
    here = _together([[*one.ty.shape.values] for one in given])
    others = [extents[axis] for axis in rest]
    if rest:
        values = emit(relax.op.broadcast_to(values, [*others[:first], *here, *others[first:]]))
        order = [*range(first, first + len(here))]
        order += [at for at in range(len(here) + len(rest)) if at not in order]
        values = emit(relax.op.permute_dims(values, order))
    writers = _writers(builder, given, [extents[axis] for axis in axes])
    if writers is not None:
        values = values if rest else emit(relax.op.broadcast_to(values, here))
        rows = emit(relax.op.reshape(values, [int(np.prod([*map(int, here)])), *others]))
        return _gathered(builder, data, [*axes, *rest], writers, rows, adds)
    places: dict[int, Any] = dict(zip(axes, given, strict=True))
    for axis, one in places.items() if rest else ():
        places[axis] = emit(relax.op.reshape(one, [*one.ty.shape.values, *[1] * len(rest)]))
    for at, axis in enumerate(rest):
        count = emit(relax.op.arange(0, extents[axis], 1, "int64"))
        shape = [extents[axis], *[1] * (len(rest) - 1 - at)]
        places[axis] = emit(relax.op.reshape(count, shape))
    ordered = relax.Tuple([places[axis] for axis in range(len(places))])
    return emit(relax.op.index_put(data, ordered, values, adds))


def _writers(
    builder: relax.BlockBuilder, given: Sequence[Any], extents: Sequence[Any]
) -> list[np.ndarray] | None:
    """Known indices turned around: of each place, the first row written to it, the second, ...

    -1 where there are fewer. None where indices are not known, or many rows go to one place.
    """
    known = [array_of(one, builder.lookup_binding) for one in given]
    sizes = [size_of(one) for one in extents]
    arrays = [one for one in known if one is not None]
    if len(arrays) < len(known) or not all(isinstance(one, int) for one in sizes):
        return None
    places = np.ravel_multi_index(np.broadcast_arrays(*arrays), sizes).ravel()
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    turn = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
    if len(turn) == 0 or turn.max() >= _MOST_WRITERS:
        return None
    found = np.full([int(turn.max()) + 1, int(np.prod(sizes))], -1)
    found[turn, ordered] = order
    return [*found]


def _gathered(
    builder: relax.BlockBuilder,
    data: Any,
    order: Sequence[int],
    writers: Sequence[np.ndarray],
    rows: Any,
    adds: bool,
) -> relax.Expr:
    """Emit a tensor with rows added at places, or in their place; ``order`` has the places first.

    Of rows for one place that are not added up any may be taken.
    """
    emit, dtype = builder.emit, str(data.ty.dtype)
    known = array_of(data, builder.lookup_binding)
    found = emit(relax.op.permute_dims(data, [*order])) if [*order] != sorted(order) else data
    turned = [*found.ty.shape.values]
    found = emit(relax.op.reshape(found, [len(writers[0]), *rows.ty.shape.values[1:]]))
    if adds and dtype in NARROW_FLOATS:
        found, rows = (emit(relax.op.astype(one, "float32")) for one in (found, rows))
    is_empty = adds and known is not None and not known.any()
    for writer in writers if adds else writers[:1]:
        part = emit(relax.op.take(rows, relax.const(np.maximum(writer, 0), "int64"), 0))
        other = relax.const(0, str(part.ty.dtype)) if adds else found
        if (writer < 0).any():
            shape = [len(writer), *[1] * (part.ty.ndim - 1)]
            is_written = relax.const((writer >= 0).reshape(shape), "bool")
            part = emit(relax.op.where(is_written, part, other))
        found = emit(relax.op.add(found, part)) if adds and not is_empty else part
        is_empty = False
    found = emit(relax.op.reshape(found, turned))
    back = [*map(int, np.argsort([*order]))]
    return emit(relax.op.permute_dims(found, back)) if back != sorted(back) else found


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
