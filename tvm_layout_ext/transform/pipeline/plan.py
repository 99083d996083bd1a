"""How far ahead each copy of a loop runs, and how many versions its buffer needs for that.

Every statement s of iteration i runs in *body* i - ahead(s). Statements that nobody asked to
buffer have ahead = 0. A copy with N versions runs N - 1 bodies before the earliest statement that
reads it: ahead(copy) = max over its readers of ahead(reader), plus N - 1. A copy that feeds the
address of another copy (an indirect load) so runs ahead of that one, too.

This is Triton's schedule with the roles turned round: Triton derives latencies from one number of
stages, here each copy states its own versions. See the pipeliner of Triton's ``TritonGPU`` dialect
(``AssignLatencies``, ``ScheduleLoops``).

Triton gives each of L levels of indirect loads a latency of (S - 1) // L bodies; levels from S - 1
on are not staged. A load of level v then runs (v + 1) * latency bodies before the product, copied
at the end of a body. Here a body copies at its top, which is the end of the body before: the same
schedule is ahead = (v + 1) * latency - 1. Operands gathered by indices (L = 2, ``mma.sync``), in
versions of operands and indices:

=====  =======  ==============  ===============  ==========  ==========  =======================
S      latency  Triton's        Triton's         versions    ahead here  bodies that compute
                distances       versions         here                    during a flight, both
=====  =======  ==============  ===============  ==========  ==========  =======================
2      1        1, not staged   1, none          1, none     0, none     0, none
3      1        1, 2            1, 1             1, 2        0, 1        0, 1
4      1        1, 2            1, 1             1, 2        0, 1        0, 1
5      2        2, 4            2, 2             2, 3        1, 3        1, 2
6      2        2, 4            2, 2             2, 3        1, 3        1, 2
=====  =======  ==============  ===============  ==========  ==========  =======================

Flights are as long as Triton's. Indices (128 bytes for 32 rows) have one version more here: Triton
reads and refills a version within one body, with a barrier between, which here a body does without.
``versions_for_triton_stages(S, level=v, levels=L)`` gives these versions.
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
from ...ir.queries import depends_on, substitute
from .parts import Part, Region

__all__ = ["PipelinePlan", "plan_pipeline"]


@dataclass(frozen=True)
class PipelinePlan:
    """A schedule of a loop's statements.

    Attributes
    ----------
    parts : tuple of Part
        The statements, in their order.
    ahead : tuple of int
        How many bodies ahead of its own iteration each runs.
    versions : tuple of int
        Versions of the buffer that each part fills; 1 where it fills none of its own.
    """

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
            j
            for j, part in enumerate(self.parts)
            for written in self.parts[copy].writes
            if j != copy and part.reads_of(written.buffer)
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
    """Work out the schedule of a loop body, or None where all would stay as it is.

    Parameters
    ----------
    parts : sequence of Part
        The statements of the body, in their order.
    loop : For
        The loop, for its variable and the words of refusals.

    Raises
    ------
    ScheduleError
        If a copy cannot run ahead of the statements before which it would come.
    """
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
        _check_written_once(plan, i, loop)
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
    readers = [
        known[j]
        for j in range(i + 1, len(parts))
        for written in part.writes
        if parts[j].reads_of(written.buffer)
    ]
    return max(readers) + part.num_stages - 1 if readers else 0


def _versions(plan: PipelinePlan, i: int) -> int:
    if plan.ahead[i] == 0:
        return 1
    return plan.ahead[i] - min(plan.ahead[r] for r in plan.readers(i)) + 1


def _check_written_once(plan: PipelinePlan, i: int, loop: Any) -> None:
    part, name = plan.parts[i], loop.loop_var.name
    for j, other in enumerate(plan.parts):
        for written in part.writes:
            buffer = written.buffer
            if j != i and other.writes_of(buffer):
                raise ScheduleError(
                    f"Buffer {buffer.name} is written by block {part.name} and again in loop "
                    f"{name}; only a buffer with one writer can have several versions."
                )
    _check_not_read_before(plan, i, loop)


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
    if condition is not None:
        used = tirx.analysis.undefined_vars(condition)
        if not any(var.same_as(element) for var in used for element in elements):
            yield condition
    if body is not None:
        yield from _conditions(body, elements)


def _check_whole(plan: PipelinePlan, i: int, loop: Any) -> None:
    """Refuse a copy that fills other elements every time, where others of them are read.

    With one version these hold what an earlier iteration copied, as in a sliding window.
    """
    part, var = plan.parts[i], loop.loop_var
    for written in part.writes:
        if written.bounds is not None and not _uses(written.bounds, var):
            continue
        for j in plan.readers(i):
            for read in plan.parts[j].reads_of(written.buffer):
                if not _within(read, written, loop):
                    raise ScheduleError(
                        f"Block {part.name} fills other elements of {written.buffer.name} in each "
                        f"iteration of loop {var.name}, and {plan.parts[j].place} reads more than "
                        "these, which an iteration before copied into another version; copy all "
                        "that an iteration reads."
                    )


def _uses(bounds: Sequence[tuple[Any, Any]], var: Any) -> bool:
    used = [v for ends in bounds for end in ends for v in tirx.analysis.undefined_vars(end)]
    return any(one.same_as(var) for one in used)


def _within(read: Region, written: Region, loop: Any) -> bool:
    """Whether all that is read of a buffer is written, as far as bounds tell."""
    if read.bounds is None or written.bounds is None:
        return False
    analyzer = tvm.sym.Analyzer()
    analyzer.bind(loop.loop_var, tvm.ir.Range.from_min_extent(loop.min, loop.extent))
    return all(
        analyzer.can_prove(first <= low) and analyzer.can_prove(high <= last)
        for (low, high), (first, last) in zip(read.bounds, written.bounds, strict=True)
    )


def _check_defined(plan: PipelinePlan, i: int, loop: Any) -> None:
    """Refuse a copy that uses a value which the body binds: it would come before it."""
    part = plan.parts[i]
    used = tirx.analysis.undefined_vars(part.stmt)
    for other in plan.parts:
        if isinstance(other.stmt, tirx.Bind) and any(other.stmt.var.same_as(v) for v in used):
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
    if read.buffer.scope() not in ("", "global"):
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
