"""How long a scheduled function is modelled to take, and the least that any could."""

from __future__ import annotations

from math import prod

import tvm
from tvm import tirx
from tvm.target import Target

from ..coalesce.cost import count_kernels
from ..gpu.kernel_time import modelled_seconds
from ..gpu.measured import H200
from ..transform.mapped_kernels import mapped_kernels

#: What counting raises on a program that it does not take.
_UNCOUNTED = (AssertionError, IndexError, KeyError, RuntimeError, TypeError, ValueError)


def seconds(func: tirx.PrimFunc, target: Target) -> float:
    """Modelled seconds of all kernels; infinite where they cannot be counted.

    Kernels that are written when the program is lowered are written first.
    """
    try:
        with target:
            written = mapped_kernels(
                tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
            )
        return modelled_seconds(count_kernels(written["main"]))
    except _UNCOUNTED:
        return float("inf")


def least_seconds(func: tirx.PrimFunc) -> float | None:
    """Seconds of a kernel that moves each parameter once; None where sizes are symbolic."""
    moved = 0
    for param in func.params:
        shape = getattr(param, "shape", ())
        if not all(isinstance(extent, tirx.IntImm) for extent in shape):
            return None
        moved += prod(map(int, shape)) * tvm.DataType(str(param.dtype)).itemsize if shape else 0
    return H200.launch + moved / H200.memory
