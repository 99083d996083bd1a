"""What conversions and recomputations cost: the test of Triton's remove-layout-conversions."""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import DataType, tirx
from tvm_ffi import WalkResult

from ...ir.queries import is_among, is_global, variables
from ...layout import LinearLayout, Movement, movement
from .graph import Op, memory_loads

#: A conversion counts for this many cheap operations on as many bytes.
_CONVERSION = 32
#: A load that is likely to be in L1.
_LOAD = 8
#: Division and functions that take several instructions, or the special function unit.
_EXPENSIVE = 8
_EXPENSIVE_CALLS = frozenset(
    f"tirx.{name}"
    for name in (
        *("exp", "exp2", "exp10", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "pow", "hypot"),
        *("sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh"),
        *("atanh", "atan2", "erf", "sigmoid", "popcount", "clz"),
    )
)
#: A tile of fewer elements, or of narrower ones, costs as much as this.
_LEAST_ELEMENTS, _LEAST_BITS = 32, 32
_LEAVES = (tirx.Var, tirx.IntImm, tirx.FloatImm)


def moves_data(src: LinearLayout, dst: LinearLayout) -> bool:
    """Whether a conversion does more than rename registers."""
    return movement(src, dst) not in (Movement.NONE, Movement.REGISTERS)


def convert_cost(src: LinearLayout, dst: LinearLayout, bits: int) -> int:
    """Cost of a conversion: 0 for renamed registers, else 32 a byte."""
    if not moves_data(src, dst):
        return 0
    elements = max(dst.total_out_size, _LEAST_ELEMENTS)
    return _CONVERSION * elements * max(bits, _LEAST_BITS) // 8


def recompute_cost(op: Op, layout: LinearLayout, *, kept: bool) -> int:
    """Cost of computing a nest's value in another layout.

    Arithmetic counts its bytes, eightfold if expensive, times the growth of a thread's elements.
    Loads count only beside one that stays (``kept``: the value is needed where it is, too).
    """
    before = op.result.layout.in_sizes["register"]
    growth = max(1, layout.in_sizes["register"] // before) - (0 if kept else 1)
    cost = arithmetic(op) * growth
    return cost + _LOAD * op.result.bytes * bool(memory_loads(op)) if kept else cost


def arithmetic(op: Op) -> int:
    """Weighted bytes of the results of a nest's operations, those that are one number left out."""
    total = 0

    def look(node: Any) -> Any:
        nonlocal total
        elements = _spread(op, node)
        if isinstance(node, tvm.ir.TensorLoad):
            return WalkResult.SKIP
        if not isinstance(node, _LEAVES) and elements > 1:
            total += _weight(node) * elements * DataType(str(node.ty)).bits // 8
        return WalkResult.ADVANCE

    tvm_ffi.structural_walk(op.value, [(tvm.ir.Expr, look)])
    return total


def _weight(node: Any) -> int:
    name = getattr(getattr(node, "op", None), "name", "")
    is_division = isinstance(node, tirx.Div) and "float" in str(node.ty)
    return _EXPENSIVE if is_division or name in _EXPENSIVE_CALLS else 1


def _spread(op: Op, node: Any) -> int:
    """How many different elements an expression has over the tile: 1 if it is one number."""
    used = _dims_used(op, node)
    return prod(size for d, size in enumerate(op.result.shape) if d in used)


def _dims_used(op: Op, node: Any) -> set[int]:
    used = variables(node)
    return {d for d, own in enumerate(op.walk.coordinates) if is_among(own, used)}


def is_expensive_load(op: Op) -> bool:
    """Whether a nest loads at least one element a thread from global memory."""
    sizes = op.result.layout.in_sizes
    threads = sizes["lane"] * sizes["warp"]
    return any(is_global(load.source) and threads <= _spread(op, load) for load in memory_loads(op))
