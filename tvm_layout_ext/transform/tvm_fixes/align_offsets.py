"""Write the element offsets of parameters as the multiples that they are.

TVM 0.27's host code checks that an offset is a multiple of its ``offset_factor``. Its CUDA code
does not know: it loads a vector element by element unless the start is provably a multiple of its
length.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ..base import function_pass


def _offsets(func: Any) -> list[tuple[Any, Any]]:
    """Offsets of parameters that are multiples of more than one, each with its written form."""
    found = []
    for param in func.params:
        if not hasattr(param.ty, "offset_factor"):
            continue
        offset, factor = param.ty.elem_offset, int(param.ty.offset_factor)
        if factor > 1 and isinstance(offset, tirx.Var):
            found.append((offset, tirx.floordiv(offset, factor) * factor))
    return found


@function_pass("AlignOffsets")
def _align_offsets(func: tirx.PrimFunc) -> tirx.PrimFunc:
    offsets = _offsets(func)
    if not offsets:
        return func

    def swap(var: Any) -> Any:
        return next((written for offset, written in offsets if offset.same_as(var)), var)

    def written(indices: Any) -> list[Any]:
        return [tvm_ffi.structural_map(i, [(tirx.Var, swap)], order="post") for i in indices]

    def load(node: Any) -> Any:
        return tirx.BufferLoad(node.source, written(node.indices))

    def store(node: Any) -> Any:
        return tirx.BufferStore(node.buffer, node.value, written(node.indices))

    rules = [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store)]
    return func.with_body(tvm_ffi.structural_map(func.body, rules, order="post"))


def AlignOffsets() -> Any:
    """Create the pass that writes element offsets as the multiples that they are.

    ::

        A = T.match_buffer(a, (n,), elem_offset=o, offset_factor=4)

        A[o + i * 4 : o + i * 4 + 4]     ->     A[o // 4 * 4 + i * 4 : ...]

    Leaves alone: offsets that are numbers or expressions.
    """
    return _align_offsets
