"""Show TVM's planning of memory the accesses behind addresses of shared memory.

TVM 0.27's MergeSharedMemoryAllocations looks past ``address_of``, which ``ldmatrix``, ``stmatrix``
and ``cp.async`` are given, and gives away the memory that such an instruction still reads.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...gpu.hardware import MATRIX_ROW_BYTES
from ...ir import ops
from ...ir.pointers import POINTER_OPS
from ...ir.queries import is_call_of
from ...ir.rebuild import call_with
from ..base import function_pass, mapped

#: Operators that are given an address of shared memory, and whether TVM should take it for a read
#: (1) or a write (2) of what is behind it.
_MASKS = {name: 1 if op.kind == "ldmatrix" else 2 for name, op in POINTER_OPS.items()}


def _exposed(argument: Any, mask: int) -> Any:
    """Turn the address of an element into a pointer that TVM's passes follow."""

    def call(node: Any) -> Any:
        if not is_call_of(node, ops.ADDRESS_OF):
            return node
        load = node.args[0]
        buffer = load.source
        if not buffer.scope().startswith("shared") or len(load.indices) != 1:
            return node
        extent = MATRIX_ROW_BYTES * 8 // tvm.DataType(str(buffer.dtype)).bits
        return buffer.access_ptr(mask, offset=load.indices[0], extent=extent)

    return tvm_ffi.structural_map(argument, [(tvm.ir.Call, call)], order="post")


@function_pass(calls=[*_MASKS])
def ExposePointers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that shows TVM what addresses of shared memory are used for.

    Does not handle: addresses given to other operators.
    """

    def call(node: Any) -> Any:
        mask = _MASKS.get(getattr(node.op, "name", ""))
        if mask is None:
            return node
        return call_with(node, [_exposed(argument, mask) for argument in node.args])

    return mapped(func, (tvm.ir.Call, call))
