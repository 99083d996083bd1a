"""Lower reductions over threads whose results lie in a buffer that other blocks write, too.

TVM 0.27's LowerCrossThreadReduction passes over these; each thread then adds its part to the result
as if it were alone.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import s_tir, tirx

from ...coalesce.isolate import borrowed, returned, writers
from ...ir.contents import contents
from ..base import function_pass


def _shared(func: tirx.PrimFunc, block: Any) -> list[Any]:
    """Buffers that a block writes beside others."""
    buffers = [region.source for region in block.writes]
    return [buffer for buffer in buffers if len(writers(func, buffer)) > 1]


@function_pass()
def LowerSharedResults(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that lowers reductions over threads beside other writers of a result.

    Each has a buffer of its own while TVM's pass runs.
    """
    if not isinstance(func.body, s_tir.SBlockRealize):
        return func
    owners: list[tuple[Any, Any]] = []
    for block in [one for one in contents(func.body).nodes(s_tir.SBlock) if one.init is not None]:
        shared = _shared(func, block)
        if shared:
            func, more = borrowed(func, block, [], shared)
            owners += more
    if not owners:
        return func
    lowered = s_tir.transform.LowerCrossThreadReduction()(tvm.IRModule({"main": func}))["main"]
    return returned(lowered, owners)
