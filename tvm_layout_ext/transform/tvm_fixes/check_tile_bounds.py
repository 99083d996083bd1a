"""Refuse tiles on the chip of which TVM finds no bound.

TVM 0.27's CompactBufferAllocation takes the largest int32 as the extent of a tile whose bound it
does not find, such as what a block reads of ``A[n - 1 - i]``. From there on shapes wrap:
``(2147483647, 4)`` becomes ``(-4,)``, and a kernel in dynamic memory is launched with too little.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ...errors import ScheduleError
from ...ir.pointers import is_unbounded
from ...ir.queries import blocks_in
from ..base import function_pass


def _unbounded_dims(buffer: Any) -> list[int]:
    """Dims that are as long as an int32 can say: compaction found nothing about them."""
    return [
        dim
        for dim, extent in enumerate(buffer.shape)
        if isinstance(extent, tirx.IntImm) and is_unbounded(extent)
    ]


@function_pass(everywhere=True)
def CheckTileBounds(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that refuses tiles on the chip of which TVM finds no bound.

    Does not handle: other targets than CUDA, and extents that are symbols.
    """
    target = func.attrs.get("target", None)
    if target is None or str(target.kind.name) != "cuda":
        return func
    for buffer in (one for block in blocks_in(func.body) for one in block.alloc_buffers):
        dims = _unbounded_dims(buffer) if str(buffer.scope()) != "global" else []
        if dims:
            raise ScheduleError(
                f"TVM finds no bound of dim {' and '.join(map(str, dims))} of buffer "
                f"{buffer.name} in {buffer.scope()} memory, of which one block touches a part "
                "that depends on a symbolic size; a tile must have a constant size at most, "
                "or stay in global memory."
            )
    return func
