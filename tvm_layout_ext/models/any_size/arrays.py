"""Arrays of threads that symbolic sizes do not cut short."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from ...ir.queries import blocks_in
from ...ir.rebuild import access_rules, block_with

#: More than any size.
_ENDLESS = 1 << 30


def endless_arrays(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let arrays in registers be endless along symbolic dims, until TVM cuts them to what is used.

    A thread uses as many elements as its loops count; TVM takes the lesser of that and of the size,
    which is no constant.
    """
    found = {
        buffer.__chandle__(): _endless(buffer)
        for block in blocks_in(func.body)
        for buffer in block.alloc_buffers
        if buffer.scope() == "local" and any(not _is_known(extent) for extent in buffer.shape)
    }

    def of(buffer: Any) -> Any:
        return found.get(buffer.__chandle__(), buffer)

    def region(one: Any) -> Any:
        return tirx.BufferRegion(of(one.source), one.region)

    def block(one: Any) -> Any:
        return block_with(one, alloc_buffers=[of(buffer) for buffer in one.alloc_buffers])

    rules = access_rules(lambda buffer, at: (of(buffer), list(at)))
    rules += [(tvm.ir.TensorRegion, region), (s_tir.SBlock, block)]
    return func.with_body(tvm_ffi.structural_map(func.body, rules, order="post"))


def _is_known(extent: Any) -> bool:
    return isinstance(extent, tirx.IntImm)


def _endless(buffer: Any) -> Any:
    shape = [n if _is_known(n) else tirx.IntImm(str(n.ty.dtype), _ENDLESS) for n in buffer.shape]
    return tirx.decl_buffer(shape, str(buffer.dtype), str(buffer.name), scope="local")
