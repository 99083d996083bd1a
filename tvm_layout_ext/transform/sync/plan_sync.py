"""Put the barriers where the accesses of shared memory need them, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.script import tirx as T

from ... import decisions
from ...analysis.barriers.dependence import UnorderedPair, first_hazard
from ...analysis.barriers.footprint import Footprints
from ...analysis.barriers.program import WRITE, Node, divergent_barrier
from ...analysis.barriers.program_accesses import other_synchronisation
from ...analysis.barriers.read_program import read_outside, read_program
from ...errors import ScheduleError
from ...ir.rebuild import loop_with
from ..base import function_pass

_NAME = "PlanSync"


def _place(hazard: UnorderedPair, *, early: bool) -> Node:
    """Statement before which a barrier separates two accesses, outside of divergent ones.

    Out of loops that the first is not in, too, and of conditions if ``early``.
    """
    place = hazard.second
    firsts = list(hazard.first.ancestors())
    for around in hazard.second.ancestors():
        leaves_loop = around.kind == "loop" and around.loop not in hazard.around
        leaves_if = early and around.kind == "if" and not any(around is one for one in firsts)
        if around.is_divergent or leaves_loop or leaves_if:
            place = around
    return place


def _refusal(hazard: UnorderedPair) -> ScheduleError:
    name, other = hazard.after.buffer, hazard.before.buffer
    if hazard.is_flying:
        return ScheduleError(
            f"Buffer {name} is used while an asynchronous copy into {other} may still be under "
            "way; wait for the copy's group first."
        )
    within = [a for a in (hazard.second, *hazard.second.ancestors()) if a.is_divergent]
    where = within[-1].described() if within else "one statement"
    verb = "written" if hazard.after.kind == WRITE else "read"
    return ScheduleError(
        f"Buffer {name} is {verb} after other threads used {other}, both inside '{where}', which "
        "only some threads of a block may run, so that no barrier can stand between them; give "
        "all threads the same condition."
    )


@dataclass(frozen=True)
class _Plan:
    """Statements of a kernel before which barriers are put, and barriers that are taken out."""

    chosen: list[Node]
    dropped: list[Node]

    def cost(self, depths: int) -> list[int]:
        """Barriers by how many loops are around them, the most first: less is better."""
        found = [node.depth for node in self.chosen]
        return [found.count(depth) for depth in reversed(range(depths))]


def _plan(prints: Footprints, own: Sequence[Node], *, early: bool) -> _Plan:
    """Plan barriers, none of which can be left out; ``own`` ones of the kernel may go, too."""
    chosen: list[Node] = []
    while (hazard := first_hazard(prints, chosen)) is not None:
        place = _place(hazard, early=early)
        if hazard.is_flying or any(place is one for one in chosen):
            raise _refusal(hazard)
        chosen.append(place)
    # The deepest first: it runs most often. Of equals, the first, which knew the least.
    for node in sorted(chosen, key=lambda node: -node.depth):
        fewer = [one for one in chosen if one is not node]
        if first_hazard(prints, fewer) is None:
            chosen = fewer
    dropped: list[Node] = []
    for node in sorted(own, key=lambda node: -node.depth):
        if first_hazard(prints, chosen, [*dropped, node]) is None:
            dropped.append(node)
    return _Plan(chosen, dropped)


def _best_plan(prints: Footprints, own: Sequence[Node]) -> _Plan:
    """The cheaper of two plans: barriers as late as possible, or out of uniform conditions.

    In ``if k + 1 < n: copy; compute``, a barrier before the ``if`` serves both.
    """
    late = _plan(prints, own, early=False)
    if not any(around.kind == "if" for node in late.chosen for around in node.ancestors()):
        return late
    plans = [late, _plan(prints, own, early=True)]
    depths = 1 + max(node.depth for plan in plans for node in plan.chosen)
    return min(plans, key=lambda plan: plan.cost(depths))


def _rebuilt(node: Node, plan: _Plan, scope: str) -> Any:
    """The statement of a node with the barriers of a plan."""
    if any(node is one for one in plan.dropped):
        return tirx.Evaluate(0)
    stmt = _with_bodies(node, [_rebuilt(child, plan, scope) for child in node.children])
    if not any(node is one for one in plan.chosen):
        return stmt
    return tirx.SeqStmt([tirx.Evaluate(T.tvm_storage_sync(scope)), stmt])


def _with_bodies(node: Node, bodies: Sequence[Any]) -> Any:
    stmt = node.stmt
    if all(new is child.stmt for new, child in zip(bodies, node.children, strict=True)):
        return stmt
    if node.kind == "seq":
        return tirx.SeqStmt(list(bodies))
    if node.kind == "if":
        return tirx.IfThenElse(stmt.condition, bodies[0], bodies[1] if len(bodies) > 1 else None)
    if isinstance(stmt, tirx.While):
        return tirx.While(stmt.condition, bodies[0])
    if node.kind == "loop":
        return loop_with(stmt, body=bodies[0])
    return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, bodies[0])


def _synchronised(launch: Any, func: tirx.PrimFunc) -> Any:
    """A kernel of a function with the barriers that it needs."""
    if foreign := other_synchronisation(launch):
        text = f"the barriers that are there, for {foreign} synchronises, too"
        decisions.note(_NAME, "the kernel", text)
        return launch
    outside = read_outside(func, launch)
    program = read_program(launch, outside.read_only)
    if condition := divergent_barrier(program):
        raise ScheduleError(
            f"A barrier stands inside '{condition}', which is not known to be the same for all "
            "threads of a block, so that some would wait for others forever; give all threads the "
            "same condition, or put the barrier outside."
        )
    if not program.arenas:
        return launch
    keeps = outside.has_exchange or program.jump
    own = [node for node in program.root.walk() if node.is_storage_sync]
    plan = _best_plan(Footprints(program), [] if keeps else own)
    if plan.chosen and program.jump:
        raise ScheduleError(
            f"The kernel needs {len(plan.chosen)} barriers and leaves statements by "
            f"{program.jump.rpartition('.')[2]}, which barriers are not planned around; "
            "write a condition instead."
        )
    if plan.chosen or plan.dropped:
        text = f"{len(plan.chosen)} barriers put in, {len(plan.dropped)} taken out"
        decisions.note(_NAME, "the kernel", text)
    return _rebuilt(program.root, plan, program.scope)


@function_pass()
def PlanSync(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that plans the barriers of annotated functions, in place of ThreadSync.

    Runs when shared buffers have their final places, so that buffers that share bytes are kept
    apart, too. A new barrier stands as late as possible, outside of loops that only the second
    access is in, and outside of statements that only some threads of a block may run. Each one that
    others make redundant goes again, and so does a ``tvm_storage_sync`` that was there, unless the
    kernel also exchanges values through global memory::

        # TVM's ThreadSync                      # PlanSync
        for k in range(n):                      for k in range(n):
            barrier                                 barrier
            S[(k + 1) % 2, t] = A[k + 1, t]         S[(k + 1) % 2, t] = A[k + 1, t]
            barrier                                 B[k, t] = S[k % 2, 255 - t]
            B[k, t] = S[k % 2, 255 - t]

    Does not handle: two accesses inside one statement, and kernels that synchronise by mbarriers,
    warpgroup instructions or named barriers, which stay as they are. Refuses barriers in divergent
    statements, buffers used before the wait for their copy, and missing barriers in a kernel with
    ``break``, ``continue`` or ``return``.
    """

    def launch(node: Any, mutator: Any) -> Any:
        if str(node.attr_key) != "thread_extent":
            return mutator.default_mutate(node)
        return _synchronised(node, func)

    return func.with_body(tvm_ffi.structural_mutate(func.body, [(tirx.AttrStmt, launch)]))
