"""The two stages that ``rfactor`` makes of a reduction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import tvm
from tvm import te, tirx
from tvm.tirx import IterVar

from ...checks import whole
from ...errors import ScheduleError
from . import tensors
from .records import AxisMap, Fuse, Move, Reorder, Split, StageRecord, is_reduction


class Factored(NamedTuple):
    """Partial results and the reduction over them; the loops of each as TensorIR leaves them."""

    partial: te.Operation
    combine: te.Operation
    partial_loops: tuple[IterVar, ...]
    combine_loops: tuple[IterVar, ...]


def check_rfactor(stage: StageRecord, axis: IterVar, factor_axis: Any) -> int:
    """Position of the new data axis, counted from the front; refuses what cannot be factored."""
    if not is_reduction(axis):
        names = ", ".join(a.var.name for a in stage.leaf if is_reduction(a)) or "none"
        raise ScheduleError(
            f"rfactor of {stage.name} needs a reduction axis ({names}), not {axis.var.name}."
        )
    if any(axis not in stage.leaf for axis in stage.op.axis) or any(stage.marks.values()):
        raise ScheduleError(
            f"rfactor of {stage.name} comes before the splits of its data axes and before "
            f"bindings, because it replaces the loops of the stage."
        )
    ndim = len(stage.op.axis) + 1
    position = whole(factor_axis)
    if position is None or not -ndim <= position < ndim:
        raise ScheduleError(
            f"rfactor of {stage.name} needs {-ndim} <= factor_axis < {ndim}, not {factor_axis!r}."
        )
    return position % ndim


def factor(stage: StageRecord, axis: IterVar, position: int) -> Factored:
    """Make the partial results over ``axis``, a data axis of theirs at ``position``."""
    extents = _leaf_extents(stage.root, stage.moves)
    values = _root_values(stage.root, stage.moves, extents)
    loops: AxisMap[IterVar] = AxisMap()
    for leaf in stage.leaf:
        if is_reduction(leaf):
            kind = IterVar.DataPar if leaf.same_as(axis) else IterVar.CommReduce
            loops[leaf] = IterVar(tvm.ir.Range(0, extents[leaf]), leaf.var, kind)
    rest = [loops[leaf] for leaf in loops if not leaf.same_as(axis)]
    index = {root.var: values[root] for root in stage.op.reduce_axis}
    partial, combine = tensors.partial_of(stage.op, loops[axis], position, rest, index)
    data = [mine for mine in partial.axis if not mine.same_as(loops[axis])]
    for old, new in zip(stage.op.axis, data, strict=True):
        loops[old] = new
    again = combine.reduce_axis[0]
    kept = [leaf for leaf in stage.leaf if leaf.same_as(axis) or not is_reduction(leaf)]
    return Factored(
        partial,
        combine,
        tuple(loops[leaf] for leaf in stage.leaf),
        tuple(again if leaf.same_as(axis) else leaf for leaf in kept),
    )


def _ceildiv(number: Any, by: Any) -> Any:
    if isinstance(number, int) and isinstance(by, int):
        return -(-number // by)
    return tirx.ceildiv(number, by)


def _plain(extent: Any) -> Any:
    return int(extent) if isinstance(extent, tirx.IntImm) else extent


def _leaf_extents(root: Iterable[IterVar], moves: Sequence[Move]) -> AxisMap[Any]:
    """Extent of every axis that the moves make out of root axes with known domains."""
    extents: AxisMap[Any] = AxisMap()
    for axis in root:
        extents[axis] = _plain(axis.dom.extent)
    for move in moves:
        if isinstance(move, Split):
            whole, given = extents[move.parent], _plain(move.factor or move.nparts)
            other = _ceildiv(whole, given)
            extents[move.inner] = given if move.nparts is None else other
            extents[move.outer] = other if move.nparts is None else given
        elif isinstance(move, Fuse):
            product: Any = 1
            for axis in move.axes:
                product = product * extents[axis]
            extents[move.fused] = product
    return extents


def _root_values(
    root: Iterable[IterVar], moves: Sequence[Move], extents: AxisMap[Any]
) -> AxisMap[Any]:
    """Value of every axis in the leaf variables: ``i`` is ``i.outer * factor + i.inner``."""
    values: AxisMap[Any] = AxisMap()
    for move in reversed([move for move in moves if not isinstance(move, Reorder)]):
        if isinstance(move, Split):
            outer, inner = (values.get(axis, axis.var) for axis in (move.outer, move.inner))
            values[move.parent] = outer * extents[move.inner] + inner
        elif isinstance(move, Fuse):
            rest = values.get(move.fused, move.fused.var)
            for axis in reversed(move.axes):
                values[axis] = tirx.floormod(rest, extents[axis])
                rest = tirx.floordiv(rest, extents[axis])
    for axis in root:
        values.setdefault(axis, axis.var)
    return values
