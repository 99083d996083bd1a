"""Reductions along rows that begin inside of vectors, by kernels of rows."""

from __future__ import annotations

from functools import partial
from typing import Any

from ...gpu.hardware import DEFAULT_ARCH, architecture
from ...ir.annotations import FUSE_ROWS
from ...ir.block_bindings import holder_of
from ..rows.chain import read_chain
from ..rows.plan import RowPlan, Wishes, ranked_plans
from ..rows.traffic import RowTraffic
from ..strategy import Strategy
from ..subject import Subject

#: Threads of the blocks that are tried. Rows of 67 halves are read at 0.82 of an H200's limit by
#: blocks of 256, at 0.40 by blocks of 64.
_THREADS = (128, 256)


def askew(subject: Subject) -> list[Strategy]:
    """Propose aligned vectors, of whose first and last a row takes what is its own.

    ::

        for i, k in T.grid(N, 257):        row = i * 257; first = row - row % 8
            B[i] += A[i, k]                for k in T.unroll(3), lane:
                                               own[k] = A[first + (k * 16 + lane) * 8 :][:8]
                                           B[i] = sum over lanes of what is in the row of own

    Raises ScheduleError if the block is no chain of rows.
    """
    nest, request = subject.nest, subject.request
    held = holder_of(subject.sch.mod, nest.block)
    if subject.kernel is not None or not subject.is_reduction or held is None:
        return []
    chain = read_chain(held[1], [str(nest.block.name_hint)])
    traffic = RowTraffic(chain, request.vector_bytes)
    if not traffic.kept or traffic.vector == traffic.whole:
        return []
    # Older GPUs have no clusters, and a mapping is proposed for all.
    wishes = Wishes(num_threads=request.num_threads or 0, cluster=1)
    plans = ranked_plans(traffic, architecture(DEFAULT_ARCH), wishes)
    tried = (request.num_threads,) if request.num_threads else _THREADS
    # What is not kept is loaded a vector after the other: of rows of 4099 floats 0.91 of the limit,
    # where all 9 vectors of a lane at once give 0.98.
    chosen = [
        plan
        for plan in plans
        if plan.threads in tried and plan.registers + plan.shared >= plan.steps(chain)
    ]

    def apply(plan: RowPlan, sch: Any, block: Any) -> str:
        sch.annotate(block, FUSE_ROWS, [*plan.numbers(), str(sch.get(block).name_hint)])
        return f"reduction along the rows, {plan.text(chain)}"

    return [Strategy("reduction", partial(apply, plan), subject.isolated) for plan in chosen]
