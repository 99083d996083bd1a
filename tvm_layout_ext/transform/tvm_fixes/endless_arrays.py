"""Arrays on the chip that symbolic sizes do not cut short."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import SBlock

from ...ir.pointers import UNBOUNDED
from ...ir.queries import blocks_in, is_global
from ...ir.rebuild import access_rules, block_with
from ..base import function_pass, mapped


@function_pass()
def EndlessArrays(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that lets arrays on the chip be endless along symbolic dims.

    A block uses as many elements as its loops count. TVM 0.27 takes the lesser of these and of the
    size, as ``min(n + 2, 10)``, and then has no constant to set memory aside for. An array that is
    used as a whole stays endless, which :class:`CheckTileBounds` refuses.

    Leaves alone: known sizes, symbolic ones of 32 bits, too few for an endless one times another,
    and buffers in global memory.
    """
    found = {
        buffer.__chandle__(): _endless(buffer)
        for block in blocks_in(func.body)
        for buffer in block.alloc_buffers
        if not is_global(buffer) and any(map(_is_open, buffer.shape))
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


def _is_open(extent: Any) -> bool:
    """Whether an extent may become an endless one: symbolic, and of 64 bits."""
    return not isinstance(extent, tirx.IntImm) and str(extent.ty.dtype) == "int64"


def _endless(buffer: Any) -> Any:
    endless = tirx.IntImm("int64", UNBOUNDED)
    shape = [endless if _is_open(extent) else extent for extent in buffer.shape]
    return tirx.decl_buffer(shape, str(buffer.dtype), str(buffer.name), scope=buffer.scope())
