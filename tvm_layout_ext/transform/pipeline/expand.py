"""Write a planned pipeline out: prologue, then one loop whose copies are predicated.

::

    for b in range(-depth, 0):            # unrolled; only the copies
        ...
    for k in range(n):
        wait until the copies read below have landed
        barrier
        if k + ahead < n:
            copy iteration k + ahead into version (k + ahead) % versions
        compute iteration k from version k % versions
    wait until nothing is under way

There is no epilogue: the last bodies copy nothing, and the last wait waits for nothing; it tells
whoever reuses the memory that no copy can land in it any more. So extents may be symbolic, 0 or
less than the depth. One barrier a body does for both directions: the copies below it overwrite
versions that were last read above it, and what is read below it landed above it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.script import tirx as T

from ...ir.annotations import ASYNC_SCOPE
from ...ir.queries import substitute
from ...ir.rebuild import block_with, loop_with, realize_with, sequence, whole_region
from .parts import Part, allocated
from .plan import PipelinePlan
from .record import PipelineRecord, PipelineStep
from .single import with_waits
from .versions import Versioned, use_version, with_versions


def expand(
    loop: Any, plan: PipelinePlan, fits_async: Callable[[Part], bool], single: Sequence[int] = ()
) -> tuple[Any, PipelineRecord]:
    """Rewrite a loop by its plan: a block that holds the versioned buffers, and its record."""
    held, keep = _allocations(loop, plan)
    flying = {i for i in plan.early if fits_async(plan.parts[i])}
    writer = _PipelineWriter(loop, plan, held, flying, tuple(single))
    body = tirx.SeqStmt([writer.prologue(), writer.steady(keep), *writer.drain()])
    allocated = [one.new for one in held]
    block = SBlock([], *_outer_regions(loop, held), "", body, None, allocated)
    return SBlockRealize([], True, block), writer.record()


def _allocations(loop: Any, plan: PipelinePlan) -> tuple[list[Versioned], list[Any]]:
    """Versioned buffers of a loop, and the other buffers that its body allocates."""
    wanted = {
        written.buffer.__chandle__(): plan.versions[i]
        for i in plan.early
        for written in plan.parts[i].writes
    }
    own = allocated(loop)
    held = [with_versions(b, wanted[b.__chandle__()]) for b in own if b.__chandle__() in wanted]
    return held, [b for b in own if b.__chandle__() not in wanted]


def _outer_regions(loop: Any, held: Sequence[Versioned]) -> tuple[list[Any], list[Any]]:
    """What the block around the pipeline reads and writes: whole buffers, but for its own."""
    own = {one.old.__chandle__() for one in held}
    if not isinstance(loop.body, SBlockRealize):
        return [], []
    block = loop.body.block
    inside = own | {b.__chandle__() for b in block.alloc_buffers}

    def whole(regions: Any) -> list[Any]:
        return [whole_region(r.source) for r in regions if r.source.__chandle__() not in inside]

    return whole(block.reads), whole(block.writes)


@dataclass(frozen=True)
class _PipelineWriter:
    """Emits the bodies of one pipeline."""

    loop: Any
    plan: PipelinePlan
    held: list[Versioned]
    asynchronous: set[int]
    single: tuple[int, ...] = ()

    def prologue(self) -> Any:
        """Bodies -depth .. -1, which only copy."""
        body_var = tirx.Var(f"{self.loop.loop_var.name}_prologue", self.loop.loop_var.ty)
        statements: list[Any] = []
        if self.plan.indirect:
            statements += self._arrive(self.plan.indirect)
        statements += self._copies(body_var - self.plan.depth, in_prologue=True)
        body = renewed(sequence(statements))
        return tirx.For(body_var, 0, self.plan.depth, tirx.ForKind.UNROLLED, body)

    def steady(self, keep: list[Any]) -> Any:
        step = self.loop.loop_var - self.loop.min
        parts = [self.plan.parts[i] for i in self.plan.late]
        late = with_waits(
            parts,
            [self._at(part.stmt, step, 0) for part in parts],
            [self.plan.parts[i] for i in self.single],
        )
        statements = [*self._arrive(self.plan.early), *self._copies(step, in_prologue=False), *late]
        body = sequence(statements)
        if isinstance(self.loop.body, SBlockRealize):
            block = self.loop.body.block
            reads, writes = (self._regions(r) for r in (block.reads, block.writes))
            body = realize_with(
                self.loop.body,
                block_with(block, reads=reads, writes=writes, body=body, alloc_buffers=keep),
            )
        return loop_with(self.loop, body=body)

    def drain(self) -> list[Any]:
        return [tirx.Evaluate(T.ptx["cp.async.wait_group"](0))] if self.asynchronous else []

    def _regions(self, regions: Any) -> list[Any]:
        """Regions of a body that computes and copies: whole buffers are safe to say."""
        by_old = {one.old.__chandle__(): one.new for one in self.held}
        found = [(region, by_old.get(region.source.__chandle__())) for region in regions]
        return [region if new is None else whole_region(new) for region, new in found]

    def _arrive(self, copies: Sequence[int]) -> list[Any]:
        """Wait for the copies that this body reads, and let all threads see them."""
        pending = self._pending(copies)
        wait = [] if pending is None else [tirx.Evaluate(T.ptx["cp.async.wait_group"](pending))]
        return [*wait, *map(_barrier, self._shared()[:1])]

    def _pending(self, copies: Sequence[int]) -> int | None:
        """Groups that may be under way when copies are read; None if none is asynchronous."""
        flying = [c for c in copies if c in self.asynchronous]
        return self.plan.lag(flying) - 1 if flying else None

    def _shared(self) -> list[Versioned]:
        return [one for one in self.held if one.new.scope().startswith("shared")]

    def record(self) -> PipelineRecord:
        plan = self.plan
        order = [*sorted(plan.early, key=lambda i: -plan.ahead[i]), *plan.late]
        return PipelineRecord(
            self.loop.loop_var.name,
            str(self.loop.extent),
            plan.depth,
            tuple(self._step(i) for i in order),
            tuple(map(Versioned.record, self.held, self._names())),
            self._pending(plan.early),
            self._pending(plan.indirect),
            bool(self._shared()),
        )

    def _step(self, i: int) -> PipelineStep:
        part = self.plan.parts[i]
        named = list(zip(self.held, self._names(), strict=True))
        filled = [name for one, name in named if part.writes_of(one.old)]
        return PipelineStep(
            part.name or f"statement {i}",
            i,
            self.plan.ahead[i],
            i in self.asynchronous,
            filled[0] if filled else None,
            tuple(name for one, name in named if part.reads_of(one.old)),
        )

    def _names(self) -> list[str]:
        """A name for each buffer; two copies of one tensor have the same in the program."""
        seen: Counter[str] = Counter()
        names = []
        for one in self.held:
            name = str(one.new.name)
            names.append(f"{name}_{seen[name]}" if seen[name] else name)
            seen[name] += 1
        return names

    def _copies(self, step: Any, *, in_prologue: bool) -> list[Any]:
        """Copies of one body; those that run equally far ahead share a condition."""
        found: list[Any] = []
        for ahead in sorted({self.plan.ahead[i] for i in self.plan.early}, reverse=True):
            group = [i for i in self.plan.early if self.plan.ahead[i] == ahead]
            copies = sequence([self._copy(i, step, ahead) for i in group])
            condition = step + ahead < self.loop.extent
            if in_prologue and ahead < self.plan.depth:
                condition = tirx.And(step + ahead >= 0, condition)
            found.append(tirx.IfThenElse(condition, copies, None))
        if self.asynchronous:
            found.append(tirx.Evaluate(T.ptx["cp.async.commit_group"]()))
        return found

    def _copy(self, i: int, step: Any, ahead: int) -> Any:
        part = self.plan.parts[i]
        stmt = self._at(part.stmt, step, ahead)
        if i not in self.asynchronous:
            return stmt
        return tirx.AttrStmt(0, ASYNC_SCOPE, int(part.async_copy or 0), stmt)

    def _at(self, stmt: Any, step: Any, ahead: int) -> Any:
        """A statement as iteration ``step + ahead`` does it."""
        stmt = self._in_versions(stmt)
        if ahead or not step.same_as(self.loop.loop_var):
            stmt = substitute(stmt, {self.loop.loop_var: self.loop.min + step + ahead})
        return stmt

    def _in_versions(self, stmt: Any) -> Any:
        for one in self.held:
            number = tirx.floormod(self.loop.loop_var - self.loop.min, one.versions)
            stmt = use_version(stmt, one, number)
        return stmt


def renewed(stmt: Any) -> Any:
    """Give the loops of a repeated statement variables of their own."""

    def renew(loop: Any) -> Any:
        fresh = tirx.Var(loop.loop_var.name, loop.loop_var.ty)
        return loop_with(loop, loop_var=fresh, body=substitute(loop.body, {loop.loop_var: fresh}))

    return tvm_ffi.structural_map(stmt, [(tirx.For, renew)], order="post")


def _barrier(one: Versioned) -> Any:
    return tirx.Evaluate(T.tvm_storage_sync(one.new.scope()))
