"""Run TVM's LowerWarpMemory until nothing is left for it."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ..base import function_pass
from .own_lane import own_lane

__all__ = ["LowerWarpMemoryFully"]


def _warp_buffers(func: tirx.PrimFunc) -> int:
    count = 0

    def look(node: Any) -> None:
        nonlocal count
        count += node.buffer.scope() == "warp"

    tvm_ffi.structural_walk(func.body, [(tirx.AllocBuffer, look)])
    return count


@function_pass("LowerWarpMemoryFully")
def _lower_warp_memory_fully(func: tirx.PrimFunc) -> tirx.PrimFunc:
    func = own_lane(func)
    left = _warp_buffers(func)
    while left:
        name = func.attrs.get("global_symbol", "main")
        func = tirx.transform.LowerWarpMemory()(tvm.IRModule({name: func}))[name]
        before, left = left, _warp_buffers(func)
        if left >= before:
            break
    return func


def LowerWarpMemoryFully() -> Any:
    """Create the pass that lowers every ``warp`` buffer of an annotated function.

    TVM 0.27's own pass rewrites only the first ``warp`` allocation of a statement sequence, so that
    the others become one full-size array a thread in local memory; and after
    CommonSubexprElim it cannot read the lane out of the indices any more. And it fails on vectors
    of more than one fragment. This pass gives each lane the part of a buffer that no other lane
    touches, and repeats TVM's, before that elimination, for what is left.

    Does not handle: functions without our annotations (their code stays TVM's, byte for byte).

    References
    ----------
    apache/tvm#5366 (the same defect, fixed in 2020 and back since allocations are flat statements).
    """
    return _lower_warp_memory_fully
