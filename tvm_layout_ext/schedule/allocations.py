"""Find on-chip buffers whose size TVM cannot bound, for which it would allocate 2^31 - 1 rows."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from .. import pipeline
from .._compat import pass_name
from ..errors import ScheduleError

__all__ = ["check_allocations"]

_COMPACTION = "s_tir.CompactBufferAllocation"
_UNBOUNDED = 2**31 - 1


def check_allocations(mod: tvm.IRModule) -> None:
    """Refuse a function of symbolic shape that keeps a tile of unknown size on chip.

    Where a guard such as ``i * 32 + j < n`` cuts the tile, CompactBufferAllocation of TVM 0.27
    loses its bound of 32 and allocates the largest int32.

    Raises
    ------
    ScheduleError
        Naming the buffer.
    """
    if not any(map(_is_symbolic, mod["main"].params)):
        return
    for compiler_pass in pipeline.lowering_passes()[0]:
        mod = compiler_pass(mod)
        if pass_name(compiler_pass) == _COMPACTION:
            break
    tvm_ffi.structural_walk(mod["main"].body, [(s_tir.SBlock, _check_block)])


def _is_symbolic(param: Any) -> bool:
    return hasattr(param, "shape") and not all(isinstance(e, tirx.IntImm) for e in param.shape)


def _check_block(block: s_tir.SBlock) -> None:
    for buffer in block.alloc_buffers:
        sizes = [int(e) if isinstance(e, tirx.IntImm) else _UNBOUNDED for e in buffer.shape]
        if buffer.scope() != "global" and max(sizes, default=1) >= _UNBOUNDED:
            raise ScheduleError(
                f"TensorIR cannot bound the tile of {buffer.name} in {buffer.scope()} memory, "
                f"because a symbolic extent cuts it; declare that as a multiple of the tile "
                f"(n * 32), or compute the stage inside one thread's loops."
            )
