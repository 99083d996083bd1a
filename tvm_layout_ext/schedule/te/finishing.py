"""What follows once every stage is in its place: initialisation, intrinsics, attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import s_tir
from tvm.tirx import IterVar

from ... import decisions
from ...errors import ScheduleError
from ...ir.diagnostics import reason
from ..handles import legal
from ..primitives.double_buffer import double_buffer
from ..primitives.eviction_policy import eviction_policy
from ..primitives.swizzle import swizzle
from .nests import Nests
from .records import Axes, StageRecord, is_reduction
from .tensor_intrin import TensorIntrin, check_fits


class Finisher:
    """Completes stages that are all in their places."""

    def __init__(self, nests: Nests) -> None:
        self.nests = nests
        self.sch = nests.sch
        self.inits: dict[StageRecord, Any] = {}

    def finish(self, stages: Sequence[StageRecord]) -> None:
        """Initialise, tensorize and annotate the stages, each step for all of them."""
        # Attributes last: blockize, which tensorize begins with, drops those of the inner block.
        for step in (self._initialise, self._tensorize, self._set_attributes):
            for stage in stages:
                step(stage)

    def _initialise(self, stage: StageRecord) -> None:
        """Initialise a reduction before its outermost reduction loop, where TE does it.

        One over threads keeps its initialisation, which LowerCrossThreadReduction needs. Where
        TensorIR cannot take a reduction apart, because a fusion left loops of varying extent, it
        stays inside, under a condition.
        """
        reductions = [axis for axis in stage.leaf if is_reduction(axis)]
        bound = any(is_reduction(axis) for axis, _ in stage.bound)
        if not reductions or bound or stage.coalesce is not None or stage.is_in_chain:
            return
        nest = self.nests.of[stage]
        first = _tensorized_around(stage, reductions[0])
        try:
            self.inits[stage] = self.sch.decompose_reduction(nest.block, nest.loops[first])
        except RuntimeError as error:
            why = f"initialised in its first iteration instead of before it: {reason(error)}"
            decisions.note("create_schedule", stage.name, why, refused=True)

    def _tensorize(self, stage: StageRecord) -> None:
        for axis, mark in stage.marks.items():
            if mark.kind == "tensorize":
                self._take_over(stage, axis, mark.value)

    def _take_over(self, stage: StageRecord, axis: IterVar, intrin: TensorIntrin | str) -> None:
        nest = self.nests.of[stage]
        inside = stage.leaf[stage.leaf.position(axis) :]
        whole = all(other in Axes(inside) for other in stage.leaf if is_reduction(other))
        nest.block = self._replace(stage, nest.loops[axis], intrin, "body" if whole else "update")
        init = self.inits.get(stage)
        if not whole and init is not None and isinstance(intrin, TensorIntrin):
            data = sum(not is_reduction(other) for other in inside)
            loops = self.sch.get_loops(init)
            self._replace(stage, loops[len(loops) - data], intrin, "reset")

    def _replace(self, stage: StageRecord, loop: Any, intrin: TensorIntrin | str, part: str) -> Any:
        """Make the loops from ``loop`` inwards one block that the intrinsic implements."""
        name = intrin if isinstance(intrin, str) else intrin.name
        request = f"tensorize of {stage.name} by {name}"
        with legal(request):
            block = self.sch.blockize(loop)
        if isinstance(intrin, TensorIntrin):
            name = intrin.register(part, self._site_scopes(block, intrin, part))
        known = s_tir.TensorIntrin.get(name, allow_missing=True)
        if known is None:
            raise ScheduleError(f"No tensor intrinsic {name} is registered with TVM.")
        check_fits(name, self.sch.get(block), known.desc)
        with legal(request):
            self.sch.tensorize(block, name)
        return block

    def _site_scopes(self, block: Any, intrin: TensorIntrin, part: str) -> list[str]:
        """Memory of each input and of the output, where an intrinsic is to be used."""
        site = self.sch.get(block)
        output = site.writes[0].source
        scopes = [r.source.scope() for r in site.reads if not r.source.same_as(output)]
        wanted = len(intrin.inputs)
        if part != "reset" and len(scopes) != wanted:
            raise ScheduleError(
                f"Intrinsic {intrin.name} reads {wanted} buffers and the loops read {len(scopes)}."
            )
        return [*(scopes or ["global"] * wanted), output.scope()]

    def _set_attributes(self, stage: StageRecord) -> None:
        block = self.nests.of[stage].block
        for align in sorted(stage.alignments, key=lambda align: align.dim):
            with legal(f"storage_align of {stage.name}"):
                self.sch.storage_align(block, 0, align.dim, align.factor, align.offset)
        if stage.swizzle_mode is not None:
            swizzle(self.sch, block, 0, stage.swizzle_mode)
        if stage.policy is not None and stage.coalesce is None:
            eviction_policy(self.sch, block, stage.policy)
        if stage.num_stages is not None:
            double_buffer(self.sch, block, stage.num_stages, async_copy=stage.async_copy)
        for key, value in sorted(stage.annotations.items()):
            with legal(f"annotate of {key} of {stage.name}"):
                self.sch.annotate(block, key, value)


def _tensorized_around(stage: StageRecord, axis: IterVar) -> IterVar:
    """The loop from which on a tensor intrinsic takes ``axis`` over, or ``axis`` itself."""
    for other in stage.leaf[: stage.leaf.position(axis) + 1]:
        mark = stage.marks.get(other)
        if mark is not None and mark.kind == "tensorize":
            return other
    return axis
