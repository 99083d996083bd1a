"""The two stages that ``rfactor`` makes of a reduction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tvm
from tvm import te
from tvm.tirx import IterVar

from ...errors import ScheduleError
from .. import checks
from . import tensors
from .axes import AxisMap, is_reduction
from .extents import leaf_extents, root_values

if TYPE_CHECKING:
    from .stage import Stage

__all__ = ["Factored", "check_rfactor", "factor"]


@dataclass(frozen=True)
class Factored:
    """Two operations, and what each loop of the reduction is in them.

    Attributes
    ----------
    partial, combine : te.Operation
        Partial results, and the reduction over them.
    partial_loops, combine_loops : tuple of IterVar
        Their root axes in the order in which TensorIR's ``rfactor`` leaves the loops.
    """

    partial: te.Operation
    combine: te.Operation
    partial_loops: tuple[IterVar, ...]
    combine_loops: tuple[IterVar, ...]


def check_rfactor(stage: Stage, axis: IterVar, factor_axis: Any) -> int:
    """Position of the new data axis, counted from the front.

    Raises
    ------
    ScheduleError
        If ``axis`` is no reduction axis, data axes are split already, or the position is outside.
    """
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
    position = checks.whole(factor_axis)
    if position is None or not -ndim <= position < ndim:
        raise ScheduleError(
            f"rfactor of {stage.name} needs {-ndim} <= factor_axis < {ndim}, not {factor_axis!r}."
        )
    return position % ndim


def factor(stage: Stage, axis: IterVar, position: int) -> Factored:
    """Make the partial results over ``axis``, a data axis of theirs at ``position``."""
    extents = leaf_extents(stage.root, stage.moves)
    values = root_values(stage.root, stage.moves, extents)
    loops: AxisMap[IterVar] = AxisMap()
    for leaf in stage.leaf:
        if is_reduction(leaf):
            kind = IterVar.DataPar if leaf.same_as(axis) else IterVar.CommReduce
            loops[leaf] = IterVar(tvm.ir.Range(0, extents[leaf]), leaf.var, kind)
    rest = [loops[leaf] for leaf in loops if not leaf.same_as(axis)]
    index = [(root.var, values[root]) for root in stage.op.reduce_axis]
    partial, combine = tensors.partial_of(stage.op, loops[axis], position, rest, index)
    data = [mine for mine in partial.axis if not mine.same_as(loops[axis])]
    for old, new in zip(stage.op.axis, data, strict=True):
        loops[old] = new
    return Factored(
        partial,
        combine,
        tuple(loops[leaf] for leaf in stage.leaf),
        tuple(
            combine.reduce_axis[0] if leaf.same_as(axis) else leaf
            for leaf in stage.leaf
            if leaf.same_as(axis) or not is_reduction(leaf)
        ),
    )
