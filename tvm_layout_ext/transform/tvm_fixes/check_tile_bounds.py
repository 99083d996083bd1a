"""Refuse tiles on the chip of which TVM finds no bound.

TVM 0.27's CompactBufferAllocation takes the largest int32 as the extent of a tile whose bound it
does not find, such as what a block reads of ``A[n - 1 - i]``. From there on shapes wrap:
``(2147483647, 4)`` becomes ``(-4,)``, and a kernel in dynamic memory is launched with too little.
"""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import SBlock

from ...errors import ScheduleError
from ...ir.annotations import MARK
from ...ir.contents import contents
from ...ir.pointers import is_unbounded
from ...ir.queries import variables
from ...target import capability
from ..base import function_pass


@function_pass(everywhere=True)
def CheckTileBounds(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that refuses tiles on the chip of which TVM finds no bound.

    In annotated functions symbolic extents are refused, too. Does not handle: other
    targets.
    """
    if capability(func.attrs.get("target", None)) == (0, 0):
        return func
    for buffer in (
        one for block in contents(func.body).nodes(SBlock) for one in block.alloc_buffers
    ):
        sizes = enumerate(buffer.shape)
        dims = [d for d, n in sizes if isinstance(n, tirx.IntImm) and is_unbounded(n)]
        if dims and buffer.scope() != "global":
            raise ScheduleError(
                f"TVM finds no bound of dim {' and '.join(map(str, dims))} of buffer "
                f"{buffer.name} in {buffer.scope()} memory, of which one block touches a part "
                "that depends on a symbolic size; a tile must have a constant size at most, "
                "or stay in global memory."
            )
        is_own = buffer.scope() != "global" and MARK in func.attrs
        if is_own and any(map(variables, buffer.shape)):
            raise ScheduleError(
                f"Buffer {buffer.name} in {buffer.scope()} memory has {buffer.shape} elements; a "
                "tile must have a constant size, or stay in global memory."
            )
    return func
