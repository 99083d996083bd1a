"""Keep the guard of a result that threads reduce together.

TVM 0.27's LowerCrossThreadReduction stores the result under the block's guard only where that guard
names a reduction loop. A guard of the data axes alone is lost, and the last, partial block of
threads stores out of bounds.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir import SBlockRealize

from ...errors import ScheduleError
from ...ir.contents import contents
from ...ir.queries import nodes_in, thread_tag, uses
from ..base import function_pass, mapped
from ..mark_annotated import is_annotated


def threads_of(func: tirx.PrimFunc) -> list[Any]:
    """The loops of a function that are bound to threads."""
    return [one for one in contents(func.body).nodes(tirx.For) if thread_tag(one)]


def _reduced(realize: SBlockRealize) -> list[Any]:
    """Values of a block's axes of reduction."""
    pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    return [value for axis, value in pairs if axis.iter_type == tirx.IterVar.CommReduce]


def reducing_thread(realize: SBlockRealize, threads: list[Any]) -> Any | None:
    """The first thread over which a block reduces."""
    values = _reduced(realize)
    return next((t for t in threads if any(uses(value, t.loop_var) for value in values)), None)


def _losing(realize: SBlockRealize, threads: list[Any]) -> Any | None:
    """The thread over which a block reduces under a guard that TVM loses, if there is one."""
    values, used = _reduced(realize), tirx.analysis.undefined_vars(realize.predicate)
    if not used or any(uses(value, var) for value in values for var in used):
        return None
    return reducing_thread(realize, threads)


def _guarded(realize: SBlockRealize, threads: list[Any]) -> SBlockRealize:
    """The realisation with the bound of its reducing thread in the guard, true as it is."""
    thread = _losing(realize, threads)
    if thread is None:
        return realize
    guard = tirx.And(realize.predicate, thread.loop_var < thread.extent)
    return SBlockRealize(realize.iter_values, guard, realize.block)


def refuse_lost_guards(func: tirx.PrimFunc) -> None:
    """Refuse what :func:`GuardReductions` would mend, had the function an annotation of ours."""
    threads = [] if is_annotated(func) else threads_of(func)
    for realize in nodes_in(func.body, SBlockRealize):
        if (thread := _losing(realize, threads)) is not None:
            raise ScheduleError(
                f"Stage {realize.block.name_hint} reduces over {thread_tag(thread)} under the "
                f"guard {realize.predicate}, which TVM loses when it stores the result; split the "
                "data axes of the stage, and of the one it is computed at, by divisors of their "
                "extents."
            )


@function_pass()
def GuardReductions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that keeps the guard of a result which threads reduce together.

    The bound of the reducing thread makes the guard name one; StmtSimplify takes it out again.
    """
    threads = threads_of(func)
    blocks = contents(func.body).nodes(SBlockRealize)
    if not any(_losing(one, threads) is not None for one in blocks):
        return func
    return mapped(func, (SBlockRealize, lambda realize: _guarded(realize, threads)))
