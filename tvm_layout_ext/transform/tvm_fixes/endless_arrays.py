"""Arrays on the chip that symbolic sizes do not cut short."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import SBlock

from ...ir.queries import blocks_in, is_global
from ...ir.rebuild import access_rules, block_with
from ..base import function_pass, mapped

#: More than any size.
_ENDLESS = 1 << 30


@function_pass()
def EndlessArrays(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that lets arrays on the chip be endless along symbolic dims.

    A block uses as many elements as its loops count. TVM 0.27 takes the lesser of these and of the
    size, as ``min(n + 2, 10)``, and then has no constant to set memory aside for.

    Leaves alone: arrays of known sizes, and buffers in global memory.
    """
    found = {
        buffer.__chandle__(): _endless(buffer)
        for block in blocks_in(func.body)
        for buffer in block.alloc_buffers
        if not is_global(buffer) and not all(map(_is_known, buffer.shape))
    }
    if not found:
        return func

    def of(buffer: Any) -> Any:
        return found.get(buffer.__chandle__(), buffer)

    def region(one: Any) -> Any:
        return tirx.BufferRegion(of(one.source), one.region)

    def block(one: Any) -> Any:
        return block_with(one, alloc_buffers=[of(buffer) for buffer in one.alloc_buffers])

    rules = access_rules(lambda buffer, at: (of(buffer), list(at)))
    return mapped(func, *rules, (tvm.ir.TensorRegion, region), (SBlock, block))


def _is_known(extent: Any) -> bool:
    return isinstance(extent, tirx.IntImm)


def _endless(buffer: Any) -> Any:
    shape = [n if _is_known(n) else tirx.IntImm(str(n.ty.dtype), _ENDLESS) for n in buffer.shape]
    return tirx.decl_buffer(shape, str(buffer.dtype), str(buffer.name), scope=buffer.scope())
