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
6. block attributes;
7. chains of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tvm import s_tir, te
from tvm.tirx import IterVar

from ...ir.block_bindings import iter_values
from ..handles import legal
from ..primitives.assume_divisible import create_prim_func
from ..primitives.fuse_rows import fuse_rows
from .finishing import Finisher
from .kernels import check_extents, check_uniform
from .nests import Nests, StageNest
from .placing import Placer
from .records import CacheRead, CacheWrite, Chain, Rewrite, RFactor, StageRecord


def materialise(
    stage_of: Callable[[te.Operation], StageRecord],
    stages: Sequence[StageRecord],
    rewrites: Sequence[Rewrite],
    chains: Sequence[Chain],
    args: list[Any],
) -> s_tir.Schedule:
    """Create a TensorIR schedule of function ``main`` with everything applied."""
    with legal("the computation"):
        func = create_prim_func(args)
    # The extra checks of "all" cost twice the time and find only defects of TVM itself.
    sch = s_tir.Schedule(func.with_attr("global_symbol", "main"), debug_mask="none")
    work = _Materialiser(Nests(sch, args))
    work.find_blocks(stage_of)
    for rewrite in rewrites:
        work.rewrite(rewrite)
    work.place([stage for stage in stages if stage in work.nests.of])
    for chain in chains:
        fuse_rows(sch, [work.nests.of[stage].block for stage in chain.stages], **chain.wishes)
    return sch


class _Materialiser:
    def __init__(self, nests: Nests) -> None:
        self.nests = nests
        self.sch = nests.sch

    def place(self, stages: Sequence[StageRecord]) -> None:
        """Put every stage where it is computed, in the order that the module describes."""
        self._set_scopes(stages)
        for stage in stages:
            if stage.inlined:
                with legal(f"compute_inline of {stage.name}"):
                    self.sch.compute_inline(self.nests.of[stage].block)
        kept = [stage for stage in stages if not stage.inlined]
        placer = Placer(self.nests)
        for stage in reversed(kept):
            placer.place(stage)
        check_extents(kept, self.nests.opened, self.nests.loop)
        for stage in (stage for stage in kept if stage.attach is not None):
            check_uniform(stage, self.nests.buffer(stage).scope(), self.nests.loop)
        Finisher(self.nests).finish(kept)

    def find_blocks(self, stage_of: Callable[[te.Operation], StageRecord]) -> None:
        """Pair stages with blocks, which ``create_prim_func`` emits in depth-first order too."""
        blocks = iter(self.sch.get_child_blocks(self.sch.get_sblock("root")))
        for op in in_order(arg.op for arg in self.nests.args if isinstance(arg, te.Tensor)):
            if isinstance(op, te.PlaceholderOp):
                continue
            block = next(blocks)
            # Outputs of a compute without reduction are blocks of their own, in one loop nest.
            for _ in range(op.num_outputs - 1 if _is_plain_compute(op) else 0):
                next(blocks)
            axes = (*op.axis, *op.reduce_axis) if isinstance(op, te.ComputeOp) else ()
            self.nests.of[stage_of(op)] = StageNest(block, axes, axes)

    def rewrite(self, rewrite: Rewrite) -> None:
        if isinstance(rewrite, CacheRead):
            self._cache_read(rewrite)
        elif isinstance(rewrite, CacheWrite):
            self._cache_write(rewrite)
        else:
            self._rfactor(rewrite)

    def _cache_read(self, record: CacheRead) -> None:
        buffer = self.nests.buffer(record.source, record.value_index)
        readers = [self.nests.of[reader].block for reader in record.readers]
        reads = self.sch.get(readers[0]).reads
        index = next(i for i, region in enumerate(reads) if region.source.same_as(buffer))
        with legal(f"cache_read of {record.source.name}"):
            block = self.sch.cache_read(readers[0], index, record.cache.scope, readers)
        axes = tuple(record.cache.root)
        self.nests.of[record.cache] = StageNest(block, axes, axes)

    def _cache_write(self, record: CacheWrite) -> None:
        nest = self.nests.of[record.target]
        with legal(f"cache_write of {record.target.name}"):
            copy = self.sch.cache_write(nest.block, 0, record.cache.scope)
        root, axes = tuple(record.cache.root), tuple(record.target.root)
        self.nests.of[record.cache] = StageNest(nest.block, root, root)
        self.nests.of[record.target] = StageNest(copy, axes, axes)

    def _rfactor(self, record: RFactor) -> None:
        nest = self.nests.of[record.target]
        self.nests.find_loops(nest, record.root)
        self.nests.apply_moves(record.target.name, nest, record.moves)
        combine = nest.block
        with legal(f"rfactor of {record.target.name} over {record.axis.var.name}"):
            partial = self.sch.rfactor(nest.loops[record.axis], record.factor_axis)
        for stage, block, loops in (
            (record.partial, partial, record.partial_loops),
            (record.target, combine, record.combine_loops),
        ):
            self.nests.of[stage] = StageNest(block, loops, self._iter_axes(block, loops))

    def _iter_axes(self, block: Any, axes: Sequence[IterVar]) -> tuple[IterVar, ...]:
        """Axes in the order of the block's iterators, found through the loop variables."""
        loops = [self.sch.get(loop) for loop in self.sch.get_loops(block)]
        named = list(zip((loop.loop_var for loop in loops), axes, strict=True))
        values = iter_values(self.sch, block)
        return tuple(next(axis for var, axis in named if value.same_as(var)) for value in values)

    def _set_scopes(self, stages: Sequence[StageRecord]) -> None:
        for stage in (stage for stage in stages if isinstance(stage.op, te.ComputeOp)):
            scope = stage.scope or self._implied_scope(stage)
            if scope != self.nests.buffer(stage).scope():
                with legal(f"set_scope of {stage.name} to {scope}"):
                    self.sch.set_scope(self.nests.of[stage].block, 0, scope)

    def _implied_scope(self, stage: StageRecord) -> str:
        """Scope of a stage without one: that of the innermost threads around it."""
        if stage.is_output or stage.inlined:
            return "global"
        tags = [str(thread.thread_tag) for _, thread in stage.bound_around()]
        if not tags:
            return "global"
        return "shared" if all(tag.startswith("blockIdx") for tag in tags) else "local"


def _is_plain_compute(op: te.Operation) -> bool:
    return isinstance(op, te.ComputeOp) and not len(op.reduce_axis)


def in_order(outputs: Iterable[te.Operation]) -> list[te.Operation]:
    """List outputs and everything they need, producers first, in TVM's own depth-first order."""
    order: dict[te.Operation, None] = {}
    # Iterative: chains of a thousand operations would exceed Python's recursion limit.
    for output in outputs:
        stack = [(output, False)]
        while stack:
            op, ready = stack.pop()
            if op in order:
                continue
            if ready:
                order[op] = None
                continue
            stack.append((op, True))
            stack.extend((tensor.op, False) for tensor in reversed(list(op.input_tensors)))
    return list(order)
