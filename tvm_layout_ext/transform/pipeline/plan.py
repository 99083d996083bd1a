"""How far ahead each copy of a loop runs, and how many versions its buffer needs for that.

Every statement s of iteration i runs in *body* i - ahead(s). Statements that nobody asked to
buffer have ahead = 0. A copy with N versions runs N - 1 bodies before the earliest statement that
reads it: ahead(copy) = max over its readers of ahead(reader), plus N - 1. A copy that feeds the
address of another copy (an indirect load) so runs ahead of that one, too.

This is Triton's schedule with the roles turned round: Triton derives latencies from one number of
stages, here each copy states its own versions (``AssignLatencies`` and ``ScheduleLoops`` of
Triton's pipeliner); ``versions_for_triton_stages`` converts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlockRealize

from ...errors import ScheduleError
from ...ir.conditions import analyzer_of, range_of
from ...ir.queries import depends_on, is_global, is_load_of, loads_in, nodes_in, substitute
from .parts import Part, Region, check_own


@dataclass(frozen=True)
class PipelinePlan:
    """How many bodies ahead each statement runs, and the versions of the buffer that it fills."""

    parts: tuple[Part, ...]
    ahead: tuple[int, ...]
    versions: tuple[int, ...]

    @property
    def depth(self) -> int:
        """Bodies before the first that computes."""
        return max(self.ahead)

    @property
    def early(self) -> list[int]:
        """Parts that run ahead, in their order."""
        return [i for i, ahead in enumerate(self.ahead) if ahead > 0]

    @property
    def late(self) -> list[int]:
        """Parts that do not."""
        return [i for i, ahead in enumerate(self.ahead) if ahead == 0]

    def readers(self, copy: int) -> list[int]:
        """Parts that read what a copy fills."""
        return [
            j for j, part in enumerate(self.parts) if j != copy and self.parts[copy].feeds(part)
        ]

    def lag(self, copies: Sequence[int]) -> int:
        """Fewest bodies that lie between one of these copies and a statement that reads it."""
        lags = [self.ahead[c] - self.ahead[r] for c in copies for r in self.readers(c)]
        return min([lag for lag in lags if lag > 0], default=1)

    @property
    def indirect(self) -> list[int]:
        """Copies that run ahead and that another one reads."""
        return [c for c in self.early if any(self.ahead[r] > 0 for r in self.readers(c))]


def plan_pipeline(parts: Sequence[Part], loop: Any) -> PipelinePlan | None:
    """Work out the schedule of a loop body, or None where all would stay as it is."""
    ahead: dict[int, int] = {}
    for i in reversed(range(len(parts))):
        ahead[i] = _ahead(parts, i, ahead)
    plan = PipelinePlan(tuple(parts), tuple(ahead[i] for i in range(len(parts))), ())
    for i, part in enumerate(parts):
        if (part.num_stages or 1) > 1 and ahead[i] == 0:
            _check_not_read_before(plan, i, loop)
    if not plan.early:
        return None
    for i in plan.early:
        check_own(parts[i], parts, loop)
        _check_not_read_before(plan, i, loop)
        _check_filled(plan, i, loop)
        _check_whole(plan, i, loop)
        _check_defined(plan, i, loop)
        _check_may_run_ahead(plan, i, loop)
    versions = tuple(_versions(plan, i) for i in range(len(parts)))
    return PipelinePlan(plan.parts, plan.ahead, versions)


def _ahead(parts: Sequence[Part], i: int, known: dict[int, int]) -> int:
    part = parts[i]
    if part.num_stages is None:
        return 0
    readers = [known[j] for j in range(i + 1, len(parts)) if part.feeds(parts[j])]
    return max(readers) + part.num_stages - 1 if readers else 0


def _versions(plan: PipelinePlan, i: int) -> int:
    if plan.ahead[i] == 0:
        return 1
    return plan.ahead[i] - min(plan.ahead[r] for r in plan.readers(i)) + 1


def _check_filled(plan: PipelinePlan, i: int, loop: Any) -> None:
    """Refuse a copy that whole iterations leave out and whose readers do not.

    With one version these read what an earlier iteration copied, with more another version.
    """
    part, var = plan.parts[i], loop.loop_var
    for condition in _conditions(part.stmt, (*part.threads,)):
        if not depends_on(condition, var):
            continue
        for j in plan.readers(i):
            others = _conditions(plan.parts[j].stmt, ())
            if not any(tvm_ffi.structural_equal(condition, other) for other in others):
                raise ScheduleError(
                    f"Block {part.name} copies only where {condition}, and {plan.parts[j].place} "
                    f"reads what it fills in every iteration of loop {var.name}; put both under "
                    "the same condition, or none."
                )


def _conditions(stmt: Any, elements: tuple[Any, ...]) -> Iterator[Any]:
    """Conditions around all that a statement does, but those of its threads and inner loops."""
    condition = body = None
    if isinstance(stmt, tirx.For):
        elements, body = (*elements, stmt.loop_var), stmt.body
    elif isinstance(stmt, SBlockRealize):
        condition, body = stmt.predicate, stmt.block.body
    elif isinstance(stmt, tirx.IfThenElse) and stmt.else_case is None:
        condition, body = stmt.condition, stmt.then_case
    if condition is not None and not any(depends_on(condition, one) for one in elements):
        yield condition
    if body is not None:
        yield from _conditions(body, elements)


def _check_whole(plan: PipelinePlan, i: int, loop: Any) -> None:
    """Refuse a copy that fills other elements every time, where others of them are read.

    With one version these hold what an earlier iteration copied, as in a sliding window.
    """
    part = plan.parts[i]
    for written in part.writes:
        for reader in (plan.parts[j] for j in plan.readers(i)):
            if not (_reads_within(reader, written, loop) and _same_places(part, reader, loop)):
                raise ScheduleError(
                    f"Block {part.name} fills other elements of {written.buffer.name} in each "
                    f"iteration of loop {loop.loop_var.name}, and {reader.place} may read more "
                    "than these, which an iteration before copied into another version; copy all "
                    "that an iteration reads, or read at the index that is written."
                )


def _reads_within(reader: Part, written: Region, loop: Any) -> bool:
    """Whether a statement reads what is written, where that differs from time to time."""
    ends = [end for pair in written.bounds or () for end in pair]
    if written.bounds is not None and not any(depends_on(end, loop.loop_var) for end in ends):
        return True
    return all(_within(read, written, loop) for read in reader.reads_of(written.buffer))


def _same_places(part: Part, reader: Part, loop: Any) -> bool:
    """Whether a statement reads at each index that moves with the loop, the same for all threads.

    A region may hold more than is written: TVM says the whole buffer of ``S[I[k], t]``.
    """
    inner = [*part.threads, *(one.loop_var for one in nodes_in(part.stmt, tirx.For))]
    for store in nodes_in(part.stmt, tirx.BufferStore):
        loads = [load for load in loads_in(reader.stmt) if is_load_of(load, store.buffer)]
        for dim, index in enumerate(store.indices):
            if not loads_in(index) and not depends_on(index, loop.loop_var):
                continue
            same = (tvm_ffi.structural_equal(load.indices[dim], index) for load in loads)
            if any(depends_on(index, var) for var in inner) or not loads or not all(same):
                return False
    return True


def _within(read: Region, written: Region, loop: Any) -> bool:
    """Whether all that is read of a buffer is written, as far as bounds tell."""
    if read.bounds is None or written.bounds is None:
        return False
    analyzer = analyzer_of([range_of(loop)])
    return all(
        analyzer.can_prove(first <= low) and analyzer.can_prove(high <= last)
        for (low, high), (first, last) in zip(read.bounds, written.bounds, strict=True)
    )


def _check_defined(plan: PipelinePlan, i: int, loop: Any) -> None:
    """Refuse a copy that uses a value which the body binds: it would come before it."""
    part = plan.parts[i]
    for other in plan.parts:
        if isinstance(other.stmt, tirx.Bind) and depends_on(part.stmt, other.stmt.var):
            raise ScheduleError(
                f"Block {part.name} uses {other.stmt.var.name}, which loop {loop.loop_var.name} "
                f"binds, so it cannot run {plan.ahead[i]} iterations ahead; write its value in "
                "the copy."
            )


def _check_not_read_before(plan: PipelinePlan, i: int, loop: Any) -> None:
    """Refuse a copy that a statement reads in the body after: that is what it must not overtake."""
    part = plan.parts[i]
    for other in plan.parts[:i]:
        for written in part.writes:
            if other.reads_of(written.buffer):
                raise ScheduleError(
                    f"Loop {loop.loop_var.name} reads {written.buffer.name} before block "
                    f"{part.name} fills it; the copy must come first to have several versions."
                )


def _check_may_run_ahead(plan: PipelinePlan, i: int, loop: Any) -> None:
    """Refuse a copy that would read what statements have not written yet that came before it.

    Copy i of iteration t runs before statement j of iterations t - 1, t - 2, ... as far as it runs
    ahead of j, and before j of iteration t itself, which matters where j comes first.
    """
    part = plan.parts[i]
    for j, other in enumerate(plan.parts):
        gap = plan.ahead[i] - plan.ahead[j]
        back = range(0 if j < i else 1, gap + 1)
        for read in part.reads:
            for written in other.writes_of(read.buffer):
                if any(not _apart(read, written, loop.loop_var, d) for d in back):
                    raise ScheduleError(
                        f"Block {part.name} reads {read.buffer.name}, which loop "
                        f"{loop.loop_var.name} writes in {other.place}, so it cannot run "
                        f"{plan.ahead[i]} iterations ahead; {_advice(read, other)}."
                    )


def _advice(read: Region, writer: Part) -> str:
    """What would be legal where a copy reads what the loop writes."""
    if not is_global(read.buffer):
        return f"give {writer.place}, which must run before it, num_stages of 2 or more, too"
    return "buffer only copies whose sources the loop leaves alone, or writes elsewhere"


def _apart(read: Region, written: Region, var: Any, back: int) -> bool:
    """Whether a region never meets another one of ``back`` iterations before."""
    if read.bounds is None or written.bounds is None:
        return False
    analyzer = tvm.sym.Analyzer()
    before = {var: var - back}
    for (low, high), (first, last) in zip(read.bounds, written.bounds, strict=True):
        first, last = substitute(first, before), substitute(last, before)
        if analyzer.can_prove(last < low) or analyzer.can_prove(high < first):
            return True
    return False
