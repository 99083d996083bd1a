"""Refuse vectors of which TVM's CUDA would move other bytes, and FP8 computed in software.

TVM 0.27 writes ``B[0:2] = A[0:2]`` of ``bool`` as an assignment of ``ushort2``, which is 4 bytes,
and of 6 elements of FP8 as one of ``uint1``, which is 4; both compile. Sums and comparisons of
vectors of FP8 it writes as if CUDA had operators for them, which does not compile.
"""

from __future__ import annotations

import tvm
from tvm import tirx

from ...errors import ScheduleError
from ...ir.pointers import POINTER_OPS, pointer_of
from ...ir.queries import ARITHMETIC, nodes_in
from ...ir.vector_types import lacking_arithmetic, miswritten
from ...target import capability
from ..base import function_pass, is_marked

#: First compute capability with instructions for FP8.
_FP8_SINCE = (8, 9)


def _float8_in_software(func: tirx.PrimFunc) -> str | None:
    """What a function does with FP8 that TVM gets wrong where the GPU has no such types."""
    for node in nodes_in(func.body, tvm.ir.Call, tirx.Cast, *ARITHMETIC):
        if isinstance(node, tvm.ir.Call):
            op = POINTER_OPS.get(getattr(node.op, "name", ""))
            element = None if op is None else pointer_of(node, op)
            if element is not None and str(element[0].dtype).startswith("float8"):
                return f"copies {element[0].dtype} into {element[0].name} asynchronously"
            continue
        for one in (node.value if isinstance(node, tirx.Cast) else node.a, node):
            if str(one.ty).startswith("float8"):
                return f"computes with {one.ty}"
    return None


@function_pass(everywhere=True)
def CheckVectors(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that refuses vectors of ``bool`` and FP8 that TVM writes as other bytes.

    Before compute capability 8.9 TVM makes 2**-7 of a zero of ``float8_e4m3fn``, and keeps FP8 on
    the chip in 32 bits; annotated functions that compute with FP8 are refused there.

    Does not handle: other targets than CUDA.
    """
    target = func.attrs.get("target", None)
    version = capability(target)
    if version == (0, 0):
        return func
    if text := miswritten(func, version) or lacking_arithmetic(func, version):
        raise ScheduleError(text)
    is_old = is_marked(func) and version < _FP8_SINCE
    if is_old and (text := _float8_in_software(func)):
        raise ScheduleError(
            f"The function {text}, which TVM gets wrong for GPUs before compute capability 8.9; "
            f"on {target.attrs['arch']} FP8 may only be moved, by plain copies."
        )
    return func
