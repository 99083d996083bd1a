"""Put a stage where it is computed: ``compute_at``, its own loops, and what they are bound to."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx
from tvm.tirx import IterVar

from ...errors import ScheduleError
from ...ir.block_bindings import guard
from ...ir.queries import is_number
from ...transform.auto_coalesce import Request, coalesce
from ..handles import legal
from ..primitives.eviction_policy import eviction_policy
from .kernels import check_parallel, check_threads, thread_tags
from .nests import Nests, StageNest
from .records import Attach, LoopMark, StageRecord, is_reduction

#: ``index`` of ``compute_at``: producers of one loop then stand in the order of the stages.
_FIRST_PLACE = -2


class Placer:
    """Places stages, which must come from consumers to producers."""

    def __init__(self, nests: Nests) -> None:
        self.nests = nests
        self.sch = nests.sch

    def place(self, stage: StageRecord) -> None:
        """Move a stage into its consumer, if it is computed there, and shape its loops."""
        nest = self.nests.of[stage]
        if stage.attach is not None:
            self._compute_at(stage, nest, stage.attach)
        if stage.coalesce is not None:
            self._coalesce(stage, nest, stage.coalesce)
            return
        self.nests.find_loops(nest, tuple(stage.root), stage.attach)
        self.nests.apply_moves(stage.name, nest, stage.moves)
        self._check_predicate(stage)
        self._mark_loops(stage, nest)
        if stage.attach is None:
            self._open_kernel(stage, nest)

    def _open_kernel(self, stage: StageRecord, nest: StageNest) -> None:
        """Give a kernel without blockIdx a grid of one block, if it has on-chip buffers to hold."""
        tags = [thread.thread_tag for _, thread in stage.bound]
        if not tags or any(tag.startswith("blockIdx") for tag in tags):
            return
        first = stage.marks.get(stage.leaf[0])
        inside = [other for other in self.nests.of if other.root_stage() is stage]
        if (first is not None and first.kind == "bind") or any(map(self._homeless, inside)):
            block = self.sch.add_unit_loop(nest.loops[stage.leaf[0]])
            self.sch.bind(block, "blockIdx.x")
            self.nests.opened.add(stage)

    def _homeless(self, stage: StageRecord) -> bool:
        """Whether an on-chip stage is computed in loops around a kernel, which run on the host."""
        if stage.attach is None or not isinstance(stage.op, te.ComputeOp) or stage.inlined:
            return False
        return not stage.bound_around() and self.nests.buffer(stage).scope() != "global"

    def _coalesce(self, stage: StageRecord, nest: StageNest, request: Request) -> None:
        if stage.is_touched:
            raise ScheduleError(
                f"Stage {stage.name} is left to auto_coalesce, but was split or bound since."
            )
        with legal(f"auto_coalesce of {stage.name}"):
            if stage.policy is not None:
                eviction_policy(self.sch, nest.block, stage.policy)
            stage.outcome = coalesce(self.sch, nest.block, request)

    def _compute_at(self, stage: StageRecord, nest: StageNest, attach: Attach) -> None:
        parent, axis = attach.stage, attach.axis
        if axis not in parent.leaf:
            raise ScheduleError(
                f"Stage {stage.name} is computed at axis {axis.var.name} of {parent.name}, "
                f"which was split or fused since; its axes are {parent.leaf}."
            )
        if parent.coalesce is not None:
            raise ScheduleError(
                f"Stage {stage.name} is computed at {axis.var.name} of {parent.name}, whose loops "
                f"auto_coalesce makes anew; split and bind those of {parent.name} instead."
            )
        if parent.inlined:
            raise ScheduleError(
                f"Stage {stage.name} is computed at {parent.name}, "
                f"which is inlined and has no loops."
            )
        self._check_inside_kernel(stage, attach)
        if not is_number(guard(self.sch, nest.block), 1):
            raise ScheduleError(
                f"compute_at of {stage.name} would lose the guard of a split that does not divide "
                f"its axis; before rfactor, split by a divisor of the extent, or compute "
                f"{stage.name} at its root."
            )
        with legal(f"compute_at of {stage.name} at {axis.var.name} of {parent.name}"):
            loop = self.nests.of[parent].loops[axis]
            self.sch.compute_at(nest.block, loop, True, _FIRST_PLACE)

    def _check_inside_kernel(self, stage: StageRecord, attach: Attach) -> None:
        root = stage.root_stage()
        if root.bound and root not in self.nests.opened and self._homeless(stage):
            raise ScheduleError(
                f"Stage {stage.name} in {self.nests.buffer(stage).scope()} memory is computed at "
                f"{attach.axis.var.name} of {attach.stage.name}, outside of the kernel; bind that "
                f"axis or one around it."
            )

    def _check_predicate(self, stage: StageRecord) -> None:
        """Accept the one store predicate that TensorIR applies, thread 0's; refuse others."""
        predicate = stage.store_predicate
        if predicate is None:
            return
        reducing = [thread.var for axis, thread in stage.bound if is_reduction(axis)]
        first = isinstance(predicate, tirx.EQ) and any(predicate.a.same_as(v) for v in reducing)
        if not first or not isinstance(predicate.b, tirx.IntImm) or int(predicate.b) != 0:
            raise ScheduleError(
                f"set_store_predicate of {stage.name} takes thread.var.equal(0) for a thread that "
                f"one of its reduction axes is bound to, where TensorIR stores from thread 0 "
                f"anyway, not {predicate}; for others use te.if_then_else in the compute."
            )

    def _mark_loops(self, stage: StageRecord, nest: StageNest) -> None:
        check_parallel(stage)
        if stage.attach is not None:
            check_threads(stage, self.nests.buffer(stage).scope(), self.nests.opened)
        tags = thread_tags(stage)
        for axis in stage.leaf:
            mark = stage.marks.get(axis)
            if mark is None or mark.kind == "tensorize":
                continue
            self._check_extent(stage, axis, mark)
            arguments = (tags[axis],) if mark.kind == "bind" else ()
            with legal(f"{mark.kind} of {axis.var.name} of {stage.name}"):
                getattr(self.sch, mark.kind)(nest.loops[axis], *arguments)
        for axis, key, value in stage.pragmas:
            with legal(f"{key} of {axis.var.name} of {stage.name}"):
                self.sch.annotate(nest.loops[axis], key, value)

    def _check_extent(self, stage: StageRecord, axis: IterVar, mark: LoopMark) -> None:
        """Refuse an extent that the mark cannot have, which TVM finds only when it lowers."""
        extent = self.nests.loop(stage, axis).extent
        where = f"{mark.kind} of {axis.var.name} of {stage.name}"
        if isinstance(extent, tirx.IntImm):
            self._check_thread_extent(where, mark, int(extent))
        elif mark.kind in ("vectorize", "unroll"):
            raise ScheduleError(
                f"{where} needs a constant extent, not {extent}; split by a constant factor first."
            )
        elif mark.kind == "bind" and self._uses_loops(stage, extent):
            raise ScheduleError(
                f"{where} needs an extent that is the same for the whole kernel, not {extent}; "
                f"split by a constant factor and bind the inner axis."
            )

    def _check_thread_extent(self, where: str, mark: LoopMark, extent: int) -> None:
        domain = mark.value.dom if mark.kind == "bind" else None
        if domain is not None and int(domain.extent) != extent:
            raise ScheduleError(
                f"{where} has {extent} iterations and the thread axis {mark.value.var.name} has "
                f"{domain.extent}; split by {domain.extent} first."
            )

    def _uses_loops(self, stage: StageRecord, extent: Any) -> bool:
        loops = self.sch.get_loops(self.nests.of[stage].block)
        variables = [self.sch.get(loop).loop_var for loop in loops]
        found = tirx.analysis.undefined_vars(extent)
        return any(var.same_as(other) for var in found for other in variables)
