"""Refuse reductions over threads that TVM leaves to each thread alone.

TVM 0.27's LowerCrossThreadReduction passes over a block whose guard or indices it cannot take
apart, such as rows of ``n - 1`` elements that are fused and split. The block stays a plain one
then, and all threads update one result at the same time.
"""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import SBlockRealize

from ...errors import ScheduleError
from ...ir.contents import contents
from ...ir.queries import thread_tag
from ..base import function_pass
from .guard_reductions import reducing_thread, threads_of


@function_pass(everywhere=True)
def CheckThreadReductions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that refuses reductions over threads which TVM leaves to each thread alone.

    It follows LowerCrossThreadReduction, which leaves no block with a start of its own.
    """
    threads = threads_of(func)
    for one in contents(func.body).nodes(SBlockRealize) if threads else ():
        thread = None if one.block.init is None else reducing_thread(one, threads)
        if thread is not None:
            at = ", ".join(map(str, one.iter_values))
            raise ScheduleError(
                f"Stage {one.block.name_hint} reduces over {thread_tag(thread)} at [{at}] where "
                f"{one.predicate}, by which TVM does not see that its threads share a result; "
                "split its axes by divisors of their extents, all of one type of integers."
            )
    return func
