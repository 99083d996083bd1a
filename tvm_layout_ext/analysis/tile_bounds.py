"""Whether TVM finds the tile that a schedule puts into shared memory, or takes the whole buffer.

TVM 0.27's CompactBufferAllocation gives up on guards as ``x % 32 < 24`` beside ``x // 32 * 32 + x %
8 * 4 < n``: the buffer stays as long as its source, or has 2**31 - 1 elements along a dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import s_tir

from .._compat import pass_name, stock_passes
from ..ir.block_bindings import holder_of
from ..ir.pointers import shape_of
from ..ir.queries import blocks_in

_COMPACTION = "s_tir.CompactBufferAllocation"


def longer_than(sch: Any, block: Any, tile: Sequence[int]) -> list[Any] | None:
    """The shape that the buffer a block fills will have, if it is longer than a tile."""
    site = sch.get(block)
    held = holder_of(sch.mod, site)
    if held is None:
        return None
    passes = stock_passes(s_tir.pipeline.default_s_tir_pipeline)
    end = next(i for i, one in enumerate(passes) if pass_name(one) == _COMPACTION)
    try:
        mod = tvm.ir.transform.Sequential(passes[: end + 1])(tvm.IRModule({"main": held[1]}))
    except (RuntimeError, ValueError, TypeError):
        return None
    wanted = site.writes[0].source
    for buffer in [one for own in blocks_in(mod["main"].body) for one in own.alloc_buffers]:
        if str(buffer.name) == str(wanted.name) and buffer.scope() == wanted.scope():
            bounds = shape_of(buffer)
            if bounds is None or any(n > most for n, most in zip(bounds, tile, strict=True)):
                return list(buffer.shape)
    return None
