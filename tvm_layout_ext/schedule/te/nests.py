"""Where each stage is in the TensorIR schedule while a record is applied to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import s_tir, te
from tvm.tirx import IterVar

from ..handles import legal
from .records import Attach, AxisMap, Fuse, Move, Split, StageRecord


@dataclass
class StageNest:
    """The block of a stage, and the loop of every leaf axis.

    ``root_loops`` are its root axes in the order of the loops, ``iter_axes`` of its iterators.
    """

    block: Any
    root_loops: tuple[IterVar, ...]
    iter_axes: tuple[IterVar, ...]
    loops: AxisMap[Any] = field(default_factory=AxisMap)


class Nests:
    """Blocks and loops of all stages, found and moved in one TensorIR schedule.

    ``opened`` are the kernels that were given a grid of one block.
    """

    def __init__(self, sch: s_tir.Schedule, args: list[Any]) -> None:
        self.sch = sch
        self.args = args
        self.of: dict[StageRecord, StageNest] = {}
        self.opened: set[StageRecord] = set()

    def buffer(self, stage: StageRecord, value_index: int = 0) -> Any:
        """Buffer that holds a stage's result now."""
        if stage in self.of:
            return self.sch.get(self.of[stage].block).writes[value_index].source
        position = next(
            i
            for i, a in enumerate(self.args)
            if isinstance(a, te.Tensor) and a.op.same_as(stage.op)
        )
        return self.sch.mod["main"].params[position]

    def loop(self, stage: StageRecord, axis: IterVar) -> Any:
        """Loop of a leaf axis."""
        return self.sch.get(self.of[stage].loops[axis])

    def find_loops(
        self, nest: StageNest, root: Sequence[IterVar], attach: Attach | None = None
    ) -> None:
        """Give every root axis its loop, and put the loops in the order of the axes."""
        loops = self.sch.get_loops(nest.block)
        order = nest.root_loops
        if attach is not None:
            parent = self.of[attach.stage]
            outer = self.sch.get(parent.loops[attach.axis])
            depth = [self.sch.get(loop).same_as(outer) for loop in loops].index(True) + 1
            loops, order = loops[depth:], nest.iter_axes
        nest.loops = AxisMap()
        for axis, loop in zip(order, loops, strict=False):
            nest.loops[axis] = loop
        if any(not axis.same_as(other) for axis, other in zip(order, root, strict=False)):
            self.sch.reorder(*(nest.loops[axis] for axis in root))

    def apply_moves(self, name: str, nest: StageNest, moves: Sequence[Move]) -> None:
        """Split, fuse and reorder the loops of a stage as it was recorded."""
        for move in moves:
            if isinstance(move, Split):
                self._split(name, nest.loops, move)
            elif isinstance(move, Fuse):
                self._fuse(name, nest, move)
            else:
                names = ", ".join(axis.var.name for axis in move.axes)
                with legal(f"reorder of {names} of {name}"):
                    self.sch.reorder(*(nest.loops[axis] for axis in move.axes))

    def _split(self, name: str, loops: AxisMap[Any], move: Split) -> None:
        with legal(f"split of {move.parent.var.name} of {name}"):
            outer, inner = self.sch.split(loops[move.parent], [move.nparts, move.factor])
        loops[move.outer], loops[move.inner] = outer, inner

    def _fuse(self, name: str, nest: StageNest, move: Fuse) -> None:
        if not move.axes:
            nest.loops[move.fused] = self.sch.add_unit_loop(nest.block)
            return
        with legal(f"fusion into {move.fused.var.name} of {name}"):
            fused = self.sch.fuse(*(nest.loops[axis] for axis in move.axes))
        nest.loops[move.fused] = fused
