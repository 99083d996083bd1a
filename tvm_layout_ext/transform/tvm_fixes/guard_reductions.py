"""Keep the guard of a result that threads reduce together.

TVM 0.27's LowerCrossThreadReduction stores the result under the block's guard only where that guard
names a reduction loop. A guard of the data axes alone is lost, and the last, partial block of
threads stores out of bounds.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir import SBlockRealize

from ...ir.queries import nodes_in, thread_tag, uses
from ..base import function_pass, mapped


def _guarded(realize: SBlockRealize, threads: list[Any]) -> SBlockRealize:
    """The realisation with the bound of its reducing thread in the guard, true as it is."""
    pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    values = [value for axis, value in pairs if axis.iter_type == tirx.IterVar.CommReduce]
    used = tirx.analysis.undefined_vars(realize.predicate)
    reducing = [one for one in threads if any(uses(value, one.loop_var) for value in values)]
    if not reducing or not used or any(uses(value, var) for value in values for var in used):
        return realize
    bound = reducing[0].loop_var < reducing[0].extent
    return SBlockRealize(realize.iter_values, tirx.And(realize.predicate, bound), realize.block)


@function_pass()
def GuardReductions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that keeps the guard of a result which threads reduce together.

    The bound of the reducing thread makes the guard name one; StmtSimplify takes it out again.
    """
    threads = [one for one in nodes_in(func.body, tirx.For) if thread_tag(one)]
    return mapped(func, (SBlockRealize, lambda realize: _guarded(realize, threads)))
