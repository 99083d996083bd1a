"""Give each lane its part of every ``warp`` buffer.

TVM 0.27's LowerWarpMemory rewrites only the first ``warp`` allocation of a statement sequence; the
others become one full-size array a thread in local memory (apache/tvm#5366, back since allocations
are flat statements). It fails on vectors of more than one fragment, too.
"""

from __future__ import annotations

import tvm
from tvm import tirx

from ...ir.queries import nodes_in
from ..base import function_pass
from .own_lane import own_lane


def _warp_buffers(func: tirx.PrimFunc) -> int:
    return sum(one.buffer.scope() == "warp" for one in nodes_in(func.body, tirx.AllocBuffer))


@function_pass()
def LowerWarpMemoryFully(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that lowers every ``warp`` buffer of an annotated function."""
    func = own_lane(func)
    left = _warp_buffers(func)
    while left:
        name = func.attrs.get("global_symbol", "main")
        func = tirx.transform.LowerWarpMemory()(tvm.IRModule({name: func}))[name]
        before, left = left, _warp_buffers(func)
        if left >= before:
            break
    return func
