"""Turn requested numbers of buffer versions into a software pipeline of the enclosing loop."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Range
from tvm.s_tir import SBlock

from ... import decisions
from ...errors import ScheduleError
from ...gpu.hardware import CP_ASYNC_SINCE
from ...ir.annotations import BY_TMA
from ...ir.contents import contents
from ...ir.queries import is_among
from ...ir.rebuild import stripped
from ...ir.thread_conditions import ThreadConditions
from ...target import capability
from ..base import function_pass
from .expand import expand
from .memory import check_fits
from .parts import REQUEST, Part, blocks_in, parts_of, requested
from .plan import PipelinePlan, plan_pipeline
from .record import PipelineRecord
from .single import in_one_version, single_copies

_NAME = "InjectMultiStageBuffer"


def _is_serial(loop: Any) -> bool:
    return loop.kind in (tirx.ForKind.SERIAL, tirx.ForKind.UNROLLED)


class _Pipelines(ThreadConditions):
    """Rewrites the loops of a function, the inner first."""

    def __init__(self, target: Any) -> None:
        super().__init__()
        self.housed: list[Any] = []
        self.target = target
        self.has_async = capability(target) >= CP_ASYNC_SINCE

    def loop(self, loop: Any, mutator: Any) -> Any:
        loop = super().loop(loop, mutator)
        if not _is_serial(loop):
            return loop
        threads = {own.loop_var: Range.from_min_extent(own.min, own.extent) for own in self.bound}
        parts = parts_of(loop, threads)
        self.housed += [b for p in parts if _is_housed(p, parts) for b in blocks_in(p.stmt)]
        plan = plan_pipeline(parts, loop)
        single = [i for i in single_copies(parts, loop) if self._fits_async(parts[i])]
        _tell_single([parts[i] for i in single], loop, plan)
        if plan is None:
            return in_one_version(loop, parts, single) if single else loop
        self._check_extent(loop)
        written, record = expand(loop, plan, self._fits_async, single)
        check_fits(record, parts, loop, self.target)
        _tell(plan, record)
        return written

    def _fits_async(self, part: Part) -> bool:
        """Whether a copy may be asynchronous, as far as its buffers tell."""
        if part.async_copy == 0:
            return False
        if part.async_copy == BY_TMA:
            raise ScheduleError(
                f"Block {part.name} asks for TMA, which fills only the tiles that "
                'use_tensor_core(block, "wgmma") multiplies; async_copy=True is cp.async.'
            )
        scopes = {r.buffer.scope() for r in part.reads} | {""}
        fits = (
            self.has_async
            and "global" in scopes
            and all(w.buffer.scope() in ("shared", "shared.dyn") for w in part.writes)
        )
        if part.async_copy and not fits:
            raise ScheduleError(
                f"Block {part.name} asks for asynchronous copies, which need sm_80 or newer and a "
                "copy from global to shared memory."
            )
        return fits

    def _check_extent(self, loop: Any) -> None:
        """Refuse a loop that threads of one block run differently often: it holds barriers."""
        var = self._thread_in(loop.extent)
        if var is not None:
            raise ScheduleError(
                f"Loop {loop.loop_var.name} holds copies with several buffer versions and runs "
                f"{loop.extent} times, which depends on {var.name}; its extent must be the "
                "same for all threads of a block."
            )
        for condition in self.conditions:
            var = self._thread_in(condition)
            if var is not None:
                raise ScheduleError(
                    f"Loop {loop.loop_var.name} holds copies with several buffer versions inside "
                    f"'{condition}', which depends on {var.name}; a pipeline has barriers, which "
                    "all threads of a block must reach."
                )

    def _thread_in(self, expr: Any) -> Any | None:
        threads = [one.loop_var for one in self.bound if "thread" in one.loop_var.name]
        used = tirx.analysis.undefined_vars(expr)
        return next((var for var in used if is_among(var, threads)), None)


def _is_housed(part: Part, parts: list[Part]) -> bool:
    """Whether a copy has a reader beside it."""
    return part.num_stages is not None and any(
        part.feeds(other) for other in parts if other is not part
    )


def _tell(plan: PipelinePlan, record: PipelineRecord) -> None:
    for i in plan.early:
        decisions.note(
            _NAME,
            plan.parts[i].name,
            f"{plan.versions[i]} buffer versions over loop {record.loop}",
            record=record,
        )


def _tell_single(copies: list[Part], loop: Any, plan: PipelinePlan | None) -> None:
    also = "" if plan is None else ", and with it for the copies that run ahead"
    for part in copies:
        text = f"one version, waited for in the body of loop {loop.loop_var.name} that copies{also}"
        decisions.note(_NAME, part.name, text)


def _check_housed(body: Any, housed: list[Any]) -> None:
    """Refuse blocks that ask for versions and are in no serial loop together with a consumer."""
    for block in blocks_in(body):
        if (requested(block) or 1) > 1 and not any(
            w.source.same_as(other.source)
            for one in housed
            for w in block.writes
            for other in one.writes
        ):
            raise ScheduleError(
                f"Block {block.name_hint} asks for several buffer versions, but no serial loop "
                "holds both it and a block that reads its buffer; compute it at a serial loop of "
                "its consumer, with no condition around the two."
            )


@function_pass()
def InjectMultiStageBuffer(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that gives a copied buffer the versions its schedule asked for.

    A block annotated ``layout_ext.num_stages`` = N writes a buffer of N versions: while one is
    computed from, the next N - 1 are being filled. The pass works out how far ahead each copy may
    run (:mod:`.plan`), and writes a prologue and one loop with predicated copies, one wait and one
    barrier (:mod:`.expand`). One version leaves the loop as it is, unless ``layout_ext.async_copy``
    = 1 demands asynchronous copies (:mod:`.single`). Refuses by name:

    * a copy in no serial loop together with its consumer, or a buffer used outside that loop,
    * a copy that reads what the same loop writes before it, or that uses a value which it binds,
    * a buffer with a second writer, one that is read before the copy, or used by its bare address,
    * a copy that whole iterations leave out, or that fills other elements in each of them, where
      readers take more than these,
    * a loop that threads of one block run differently often, or only some of them run,
    * versions that need more shared memory than a block of the target may have.
    """
    if not any(requested(block) is not None for block in contents(func.body).nodes(SBlock)):
        return func
    pipelines = _Pipelines(func.attrs.get("target", None))
    body = tvm_ffi.structural_mutate(func.body, pipelines.rules)
    _check_housed(func.body, pipelines.housed)
    return func.with_body(stripped(body, *REQUEST))
