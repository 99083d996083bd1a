"""Apply a recorded TE-style schedule to TensorIR, in one fixed order.

TE lets calls come in any order; TensorIR does not: ``compute_at`` discards the splits of the
block that it moves, and how much of a buffer it computes depends on which loops are bound by then.
The order here is the one in which TE's own bound inference looked at a schedule:

1. ``cache_read``, ``cache_write`` and ``rfactor``, in the order of the calls;
2. scopes, then ``compute_inline``;
3. stages from consumers to producers: ``compute_at``, the stage's splits, fusions and reorders,
   then its bindings, so that regions relax over threads according to the storage scope;
4. initialisation of reductions, before the outermost reduction loop;
5. tensor intrinsics;
6. block attributes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tvm import s_tir, te, tirx
from tvm.tirx import IterVar

from .. import decisions
from ..errors import ScheduleError
from ..transform.auto_coalesce import Request, coalesce
from .assume_divisible import create_prim_func
from .axes import Axes, AxisMap, is_reduction
from .double_buffer import double_buffer
from .graph import in_order
from .kernels import (
    check_extents,
    check_parallel,
    check_threads,
    check_uniform,
    loops_around,
    root_of,
    thread_tags,
)
from .records import Attach, CacheRead, CacheWrite, Fuse, LoopMark, Move, Rewrite, RFactor, Split
from .tensor_intrin import TensorIntrin, check_fits

if TYPE_CHECKING:
    from .face import Schedule
    from .stage import Stage

__all__ = ["materialise"]

#: ``index`` of ``compute_at``: producers of one loop then stand in the order of the stages.
_FIRST_PLACE = -2


@contextmanager
def _legal(request: str) -> Iterator[None]:
    """Turn TVM's refusal of a request into one sentence."""
    try:
        yield
    except ScheduleError:
        raise
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        raise ScheduleError(f"TensorIR refuses {request}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """First line of a TVM diagnostic's message, without the program around it."""
    text = str(error).rpartition("Error message:")[2].strip().removeprefix("ScheduleError: ")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = re.sub(r"(tirx|s_tir)\.(\w+)#\d+", r"\2", lines[0] if lines else "")
    return f"{reason.rstrip('.:') or type(error).__name__}."


@dataclass
class _Nest:
    """Where a stage is in the TensorIR schedule.

    Attributes
    ----------
    block : SBlockRV
        Its block.
    root_loops : tuple of IterVar
        Its root axes in the order of the loops around it, while it is not moved.
    iter_axes : tuple of IterVar
        Its root axes in the order of its block iterators.
    loops : AxisMap
        The loop of every leaf axis.
    """

    block: Any
    root_loops: tuple[IterVar, ...]
    iter_axes: tuple[IterVar, ...]
    loops: AxisMap[Any] = field(default_factory=AxisMap)


def materialise(schedule: Schedule, args: list[Any]) -> s_tir.Schedule:
    """Create a TensorIR schedule of function ``main`` with everything applied.

    Parameters
    ----------
    schedule : Schedule
        What was recorded.
    args : list of te.Tensor or Var
        Parameters of the function.

    Raises
    ------
    ScheduleError
        If TensorIR refuses something; the sentence names it.
    """
    with _legal("the computation"):
        func = create_prim_func(args)
    # The extra checks of "all" cost twice the time and find only defects of TVM itself.
    sch = s_tir.Schedule(func.with_attr("global_symbol", "main"), debug_mask="none")
    return _Materialiser(schedule, sch, args).run()


class _Materialiser:
    def __init__(self, schedule: Schedule, sch: s_tir.Schedule, args: list[Any]) -> None:
        self.schedule = schedule
        self.sch = sch
        self.args = args
        self.nests: dict[Stage, _Nest] = {}
        self.inits: dict[Stage, Any] = {}
        self.opened: set[Stage] = set()

    def run(self) -> s_tir.Schedule:
        self._find_blocks()
        for rewrite in self.schedule.rewrites:
            self._rewrite(rewrite)
        placed = [stage for stage in self.schedule.stages if stage in self.nests]
        self._set_scopes(placed)
        for stage in placed:
            if stage.inlined:
                with _legal(f"compute_inline of {stage.name}"):
                    self.sch.compute_inline(self.nests[stage].block)
        kept = [stage for stage in placed if not stage.inlined]
        for stage in reversed(kept):
            self._place(stage)
        check_extents(kept, self.opened, self._loop)
        for stage in (stage for stage in kept if stage.attach is not None):
            check_uniform(stage, self._buffer(stage).scope(), self._loop)
        # Attributes last: blockize, which tensorize begins with, drops those of the inner block.
        for step in (self._initialise, self._tensorize, self._set_attributes):
            for stage in kept:
                step(stage)
        return self.sch

    def _find_blocks(self) -> None:
        """Pair stages with blocks, which ``create_prim_func`` emits in depth-first order too."""
        blocks = iter(self.sch.get_child_blocks(self.sch.get_sblock("root")))
        for op in in_order(arg.op for arg in self.args if isinstance(arg, te.Tensor)):
            if isinstance(op, te.PlaceholderOp):
                continue
            block = next(blocks)
            # Outputs of a compute without reduction are blocks of their own, in one loop nest.
            for _ in range(op.num_outputs - 1 if _is_plain_compute(op) else 0):
                next(blocks)
            axes = (*op.axis, *op.reduce_axis) if isinstance(op, te.ComputeOp) else ()
            self.nests[self.schedule[op]] = _Nest(block, axes, axes)

    def _buffer(self, stage: Stage, value_index: int = 0) -> Any:
        """Buffer that holds a stage's result now."""
        if stage in self.nests:
            return self.sch.get(self.nests[stage].block).writes[value_index].source
        position = next(
            i
            for i, a in enumerate(self.args)
            if isinstance(a, te.Tensor) and a.op.same_as(stage.op)
        )
        return self.sch.mod["main"].params[position]

    def _rewrite(self, rewrite: Rewrite) -> None:
        if isinstance(rewrite, CacheRead):
            self._cache_read(rewrite)
        elif isinstance(rewrite, CacheWrite):
            self._cache_write(rewrite)
        else:
            self._rfactor(rewrite)

    def _cache_read(self, record: CacheRead) -> None:
        buffer = self._buffer(record.source, record.value_index)
        readers = [self.nests[reader].block for reader in record.readers]
        reads = self.sch.get(readers[0]).reads
        index = next(i for i, region in enumerate(reads) if region.source.same_as(buffer))
        with _legal(f"cache_read of {record.source.name}"):
            block = self.sch.cache_read(readers[0], index, record.cache.scope, readers)
        axes = tuple(record.cache.root)
        self.nests[record.cache] = _Nest(block, axes, axes)

    def _cache_write(self, record: CacheWrite) -> None:
        nest = self.nests[record.target]
        with _legal(f"cache_write of {record.target.name}"):
            copy = self.sch.cache_write(nest.block, 0, record.cache.scope)
        root, axes = tuple(record.cache.root), tuple(record.target.root)
        self.nests[record.cache] = _Nest(nest.block, root, root)
        self.nests[record.target] = _Nest(copy, axes, axes)

    def _rfactor(self, record: RFactor) -> None:
        nest = self.nests[record.target]
        self._find_loops(nest, record.root)
        self._apply_moves(record.target.name, nest, record.moves)
        combine = nest.block
        with _legal(f"rfactor of {record.target.name} over {record.axis.var.name}"):
            partial = self.sch.rfactor(nest.loops[record.axis], record.factor_axis)
        for stage, block, loops in (
            (record.partial, partial, record.parts.partial_loops),
            (record.target, combine, record.parts.combine_loops),
        ):
            self.nests[stage] = _Nest(block, loops, self._iter_axes(block, loops))

    def _iter_axes(self, block: Any, axes: Sequence[IterVar]) -> tuple[IterVar, ...]:
        """Axes in the order of the block's iterators, found through the loop variables."""
        loops = [self.sch.get(loop) for loop in self.sch.get_loops(block)]
        named = list(zip((loop.loop_var for loop in loops), axes, strict=True))
        values = self._realize(block).iter_values
        return tuple(next(axis for var, axis in named if value.same_as(var)) for value in values)

    def _realize(self, block: Any) -> Any:
        """SBlockRealize of a block that is still alone in its loop nest."""
        loops = self.sch.get_loops(block)
        if loops:
            return self.sch.get(loops[-1]).body
        wanted = self.sch.get(block)
        body = self.sch.get(self.sch.get_sblock("root")).body
        realizes = body.seq if isinstance(body, tirx.SeqStmt) else [body]
        return next(
            r for r in realizes if isinstance(r, s_tir.SBlockRealize) and r.block.same_as(wanted)
        )

    def _set_scopes(self, stages: Sequence[Stage]) -> None:
        for stage in (stage for stage in stages if isinstance(stage.op, te.ComputeOp)):
            scope = stage.scope or self._implied_scope(stage)
            if scope != self._buffer(stage).scope():
                with _legal(f"set_scope of {stage.name} to {scope}"):
                    self.sch.set_scope(self.nests[stage].block, 0, scope)

    def _implied_scope(self, stage: Stage) -> str:
        """Scope of a stage without one: that of the innermost threads around it."""
        if stage.is_output or stage.inlined:
            return "global"
        tags = [mark.value.thread_tag for mark in _marks_around(stage) if mark.kind == "bind"]
        if not tags:
            return "global"
        return "shared" if all(tag.startswith("blockIdx") for tag in tags) else "local"

    def _place(self, stage: Stage) -> None:
        nest = self.nests[stage]
        if stage.attach is not None:
            self._compute_at(stage, nest, stage.attach)
        if stage.coalesce is not None:
            self._coalesce(stage, nest, stage.coalesce)
            return
        self._find_loops(nest, tuple(stage.root), stage.attach)
        self._apply_moves(stage.name, nest, stage.moves)
        self._check_predicate(stage)
        self._mark_loops(stage, nest)
        if stage.attach is None:
            self._open_kernel(stage, nest)

    def _open_kernel(self, stage: Stage, nest: _Nest) -> None:
        """Give a kernel without blockIdx a grid of one block, if it has on-chip buffers to hold.

        TVM would begin the kernel at the threadIdx loop, and allocate on the host what is computed
        in loops around it.
        """
        tags = [mark.value.thread_tag for mark in stage.marks.values() if mark.kind == "bind"]
        if not tags or any(tag.startswith("blockIdx") for tag in tags):
            return
        first = stage.marks.get(stage.leaf[0])
        inside = [other for other in self.nests if root_of(other) is stage]
        if (first is not None and first.kind == "bind") or any(map(self._homeless, inside)):
            block = self.sch.add_unit_loop(nest.loops[stage.leaf[0]])
            self.sch.bind(block, "blockIdx.x")
            self.opened.add(stage)

    def _homeless(self, stage: Stage) -> bool:
        """Whether an on-chip stage is computed in loops around a kernel, which run on the host."""
        if stage.attach is None or not isinstance(stage.op, te.ComputeOp) or stage.inlined:
            return False
        bound = any(mark.kind == "bind" for mark in _marks_around(stage))
        return not bound and self._buffer(stage).scope() != "global"

    def _coalesce(self, stage: Stage, nest: _Nest, request: Request) -> None:
        if stage.moves or any(stage.marks.values()):
            raise ScheduleError(
                f"Stage {stage.name} is left to auto_coalesce, but was split or bound since."
            )
        with _legal(f"auto_coalesce of {stage.name}"):
            coalesce(self.sch, nest.block, request)

    def _compute_at(self, stage: Stage, nest: _Nest, attach: Attach) -> None:
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
        if not _is_true(self._realize(nest.block).predicate):
            raise ScheduleError(
                f"compute_at of {stage.name} would lose the guard of a split that does not divide "
                f"its axis; before rfactor, split by a divisor of the extent, or compute "
                f"{stage.name} at its root."
            )
        with _legal(f"compute_at of {stage.name} at {axis.var.name} of {parent.name}"):
            loop = self.nests[parent].loops[axis]
            self.sch.compute_at(nest.block, loop, True, _FIRST_PLACE)

    def _check_inside_kernel(self, stage: Stage, attach: Attach) -> None:
        root = root_of(stage)
        bound = any(mark.kind == "bind" for mark in root.marks.values())
        if bound and root not in self.opened and self._homeless(stage):
            raise ScheduleError(
                f"Stage {stage.name} in {self._buffer(stage).scope()} memory is computed at "
                f"{attach.axis.var.name} of {attach.stage.name}, outside of the kernel; bind that "
                f"axis or one around it."
            )

    def _find_loops(
        self, nest: _Nest, root: Sequence[IterVar], attach: Attach | None = None
    ) -> None:
        """Give every root axis its loop, and put the loops in the order of the axes."""
        loops = self.sch.get_loops(nest.block)
        order = nest.root_loops
        if attach is not None:
            parent = self.nests[attach.stage]
            outer = self.sch.get(parent.loops[attach.axis])
            depth = [self.sch.get(loop).same_as(outer) for loop in loops].index(True) + 1
            loops, order = loops[depth:], nest.iter_axes
        nest.loops = AxisMap()
        for axis, loop in zip(order, loops, strict=False):
            nest.loops[axis] = loop
        if any(not axis.same_as(other) for axis, other in zip(order, root, strict=False)):
            self.sch.reorder(*(nest.loops[axis] for axis in root))

    def _apply_moves(self, name: str, nest: _Nest, moves: Sequence[Move]) -> None:
        for move in moves:
            if isinstance(move, Split):
                self._split(name, nest.loops, move)
            elif isinstance(move, Fuse):
                self._fuse(name, nest, move)
            else:
                names = ", ".join(axis.var.name for axis in move.axes)
                with _legal(f"reorder of {names} of {name}"):
                    self.sch.reorder(*(nest.loops[axis] for axis in move.axes))

    def _split(self, name: str, loops: AxisMap[Any], move: Split) -> None:
        with _legal(f"split of {move.parent.var.name} of {name}"):
            outer, inner = self.sch.split(loops[move.parent], [move.nparts, move.factor])
        loops[move.outer], loops[move.inner] = outer, inner

    def _fuse(self, name: str, nest: _Nest, move: Fuse) -> None:
        if not move.axes:
            nest.loops[move.fused] = self.sch.add_unit_loop(nest.block)
            return
        with _legal(f"fusion into {move.fused.var.name} of {name}"):
            fused = self.sch.fuse(*(nest.loops[axis] for axis in move.axes))
        nest.loops[move.fused] = fused

    def _check_predicate(self, stage: Stage) -> None:
        """Accept the one store predicate that TensorIR applies, refuse others.

        LowerCrossThreadReduction lets only thread 0 store, which classic schedules asked for.
        """
        predicate = stage.store_predicate
        if predicate is None:
            return
        reducing = [
            mark.value.var
            for axis, mark in stage.marks.items()
            if mark.kind == "bind" and is_reduction(axis)
        ]
        first = isinstance(predicate, tirx.EQ) and any(predicate.a.same_as(v) for v in reducing)
        if not first or not isinstance(predicate.b, tirx.IntImm) or int(predicate.b) != 0:
            raise ScheduleError(
                f"set_store_predicate of {stage.name} takes thread.var.equal(0) for a thread that "
                f"one of its reduction axes is bound to, where TensorIR stores from thread 0 "
                f"anyway, not {predicate}; for others use te.if_then_else in the compute."
            )

    def _loop(self, stage: Stage, axis: IterVar) -> Any:
        return self.sch.get(self.nests[stage].loops[axis])

    def _mark_loops(self, stage: Stage, nest: _Nest) -> None:
        check_parallel(stage)
        if stage.attach is not None:
            check_threads(stage, self._buffer(stage).scope(), self.opened)
        tags = thread_tags(stage)
        for axis in stage.leaf:
            mark = stage.marks.get(axis)
            if mark is None or mark.kind == "tensorize":
                continue
            self._check_extent(stage, axis, mark)
            arguments = (tags[axis],) if mark.kind == "bind" else ()
            with _legal(f"{mark.kind} of {axis.var.name} of {stage.name}"):
                getattr(self.sch, mark.kind)(nest.loops[axis], *arguments)
        for axis, key, value in stage.pragmas:
            with _legal(f"{key} of {axis.var.name} of {stage.name}"):
                self.sch.annotate(nest.loops[axis], key, value)

    def _check_extent(self, stage: Stage, axis: IterVar, mark: LoopMark) -> None:
        """Refuse an extent that the mark cannot have, which TVM finds only when it lowers."""
        extent = self._loop(stage, axis).extent
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

    def _uses_loops(self, stage: Stage, extent: Any) -> bool:
        loops = self.sch.get_loops(self.nests[stage].block)
        variables = [self.sch.get(loop).loop_var for loop in loops]
        found = tirx.analysis.undefined_vars(extent)
        return any(var.same_as(other) for var in found for other in variables)

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

    def _set_attributes(self, stage: Stage) -> None:
        block = self.nests[stage].block
        for align in sorted(stage.alignments, key=lambda align: align.dim):
            with _legal(f"storage_align of {stage.name}"):
                self.sch.storage_align(block, 0, align.dim, align.factor, align.offset)
        if stage.num_stages is not None:
            double_buffer(self.sch, block, stage.num_stages)
        for key, value in sorted(stage.annotations.items()):
            with _legal(f"annotate of {key} of {stage.name}"):
                self.sch.annotate(block, key, value)

    def _initialise(self, stage: Stage) -> None:
        """Initialise a reduction before its outermost reduction loop, where TE does it.

        A reduction over threads keeps its initialisation, which LowerCrossThreadReduction needs.
        One that a tensor intrinsic does whole is initialised before the intrinsic. Where TensorIR
        cannot take a reduction apart, because a fusion around it left loops of varying extent, the
        initialisation stays inside, under a condition.
        """
        reductions = [axis for axis in stage.leaf if is_reduction(axis)]
        marks = [stage.marks.get(axis) for axis in reductions]
        bound = any(mark is not None and mark.kind == "bind" for mark in marks)
        if not reductions or bound or stage.coalesce is not None:
            return
        nest = self.nests[stage]
        first = _tensorized_around(stage, reductions[0])
        try:
            self.inits[stage] = self.sch.decompose_reduction(nest.block, nest.loops[first])
        except RuntimeError as error:
            why = f"initialised in its first iteration instead of before it: {_reason(error)}"
            decisions.note("create_schedule", stage.name, why, refused=True)

    def _tensorize(self, stage: Stage) -> None:
        for axis, mark in stage.marks.items():
            if mark.kind == "tensorize":
                self._take_over(stage, axis, mark.value)

    def _take_over(self, stage: Stage, axis: IterVar, intrin: TensorIntrin | str) -> None:
        nest = self.nests[stage]
        inside = list(stage.leaf)[stage.leaf.index(axis) :]
        whole = all(other in Axes(inside) for other in stage.leaf if is_reduction(other))
        nest.block = self._replace(stage, nest.loops[axis], intrin, "body" if whole else "update")
        init = self.inits.get(stage)
        if not whole and init is not None and isinstance(intrin, TensorIntrin):
            data = sum(not is_reduction(other) for other in inside)
            loops = self.sch.get_loops(init)
            self._replace(stage, loops[len(loops) - data], intrin, "reset")

    def _replace(self, stage: Stage, loop: Any, intrin: TensorIntrin | str, part: str) -> Any:
        """Make the loops from ``loop`` inwards one block that the intrinsic implements."""
        name = intrin if isinstance(intrin, str) else intrin.name
        request = f"tensorize of {stage.name} by {name}"
        with _legal(request):
            block = self.sch.blockize(loop)
        if isinstance(intrin, TensorIntrin):
            name = intrin.register(part, self._site_scopes(block, intrin, part))
        known = s_tir.TensorIntrin.get(name, allow_missing=True)
        if known is None:
            raise ScheduleError(f"No tensor intrinsic {name} is registered with TVM.")
        check_fits(name, self.sch.get(block), known.desc)
        with _legal(request):
            self.sch.tensorize(block, name)
        return block


def _tensorized_around(stage: Stage, axis: IterVar) -> IterVar:
    """The loop from which on a tensor intrinsic takes ``axis`` over, or ``axis`` itself."""
    for other in list(stage.leaf)[: stage.leaf.index(axis) + 1]:
        mark = stage.marks.get(other)
        if mark is not None and mark.kind == "tensorize":
            return other
    return axis


def _is_true(predicate: Any) -> bool:
    return isinstance(predicate, tirx.IntImm) and bool(predicate.value)


def _is_plain_compute(op: te.Operation) -> bool:
    return isinstance(op, te.ComputeOp) and not len(op.reduce_axis)


def _marks_around(stage: Stage) -> Iterator[LoopMark]:
    """Marks of the loops that a stage is computed in, innermost first."""
    return (mark for _, _, mark in loops_around(stage) if mark is not None)
