"""Tell the compiler how many blocks a multiprocessor should hold: ``__launch_bounds__``.

Else ptxas takes as few registers as the most threads would leave each of them, and puts loads
behind the additions of earlier ones to get there.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ... import decisions
from ...ir import ops
from ...ir.annotations import MIN_BLOCKS
from ...ir.rebuild import loop_with, without_annotations
from ..base import function_pass, mapped

_NAME = "SetLaunchBounds"
#: What TVM's code generation for CUDA makes the second number of ``__launch_bounds__``.
_ATTRIBUTE = ops.LAUNCH_BOUNDS_MIN_BLOCKS_PER_SM


def _bounded(loop: Any) -> Any:
    blocks = loop.annotations.get(MIN_BLOCKS, None)
    if blocks is None:
        return loop
    decisions.note(_NAME, "grid", f"{int(blocks)} blocks a multiprocessor")
    body = tirx.AttrStmt(loop.loop_var, _ATTRIBUTE, tirx.IntImm("int32", int(blocks)), loop.body)
    return loop_with(without_annotations(loop, MIN_BLOCKS), body=body)


@function_pass(asks=MIN_BLOCKS)
def SetLaunchBounds(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that bounds the registers of kernels whose schedule says how many blocks.

    Does not handle: targets other than CUDA, whose code generation passes the attribute over.
    """
    return mapped(func, (tirx.For, _bounded))
