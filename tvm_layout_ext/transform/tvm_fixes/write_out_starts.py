"""Write out where vectors start, as far as the host has computed it.

TVM 0.27 computes ``n * 8`` once, for the size of a buffer and for a vector that starts there. Its
CUDA code then no longer sees that the start is a multiple of 8, and moves the vector element by
element; by indices of 64 bits it cannot do that and fails.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...ir.queries import nodes_in, substitute
from ...ir.walk import is_launch
from ..base import function_pass, mapped


def _values(func: tirx.PrimFunc, *, on_host: bool) -> dict[Any, Any]:
    """What variables stand for in others that nothing binds; maybe only those outside kernels."""
    found: dict[Any, Any] = {}

    def attribute(node: Any) -> Any:
        return tvm_ffi.WalkResult.SKIP if on_host and is_launch(node) else None

    def bind(node: Any) -> None:
        if not nodes_in(node.value, tvm.ir.TensorLoad, tvm.ir.Call):
            found[node.var] = substitute(node.value, found)

    rules = [(tirx.AttrStmt, attribute), (tirx.Bind, bind)]
    tvm_ffi.structural_walk(func.body, rules, order="pre")
    return found


@function_pass()
def WriteOutStarts(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that writes out starts of vectors which the host has computed.

    Leaves alone: starts that are no multiples of the vectors' lengths.
    """
    values = _values(func, on_host=True)
    if not values:
        return func
    all_values = _values(func, on_host=False)

    def is_aligned(start: Any, lanes: int) -> bool:
        known = tvm.sym.Analyzer().modular_set(substitute(start, all_values))
        return bool(known.coeff % lanes == known.base % lanes == 0)

    def ramp(node: Any) -> Any:
        start = substitute(node.base, values)
        if start.same_as(node.base) or not is_aligned(start, int(node.lanes)):
            return node
        return tirx.Ramp(start, node.stride, node.lanes)

    return mapped(func, (tirx.Ramp, ramp))
