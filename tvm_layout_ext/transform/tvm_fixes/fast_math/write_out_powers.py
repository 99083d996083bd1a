"""Write powers so that those of negative numbers are numbers.

TVM 0.27 compiles with ``--use_fast_math``, by which ``powf(x, y)`` is ``exp2f(y * log2f(x))`` (CUDA
C++ Programming Guide, "Intrinsic Functions"): of a negative ``x`` it is NaN. The squares of an RMS
norm that torch writes as ``x.pow(2)`` all come out so, and the cubes of GELU by ``tanh``.
"""

from __future__ import annotations

from functools import reduce
from operator import mul
from typing import Any

import tvm
from tvm import tirx

from ....ir import ops
from ....ir.queries import is_call_of
from ...base import function_pass, mapped

#: Exponents up to which a power is a product.
_PRODUCTS = 4


def _power(node: Any) -> Any:
    if not is_call_of(node, ops.POW) or str(node.ty) not in ("float16", "float32"):
        return node
    exponent = node.args[1]
    if not isinstance(exponent, tirx.FloatImm) or not float(exponent.value).is_integer():
        return node
    # Of float16 TVM's own is computed in float32, too.
    base, times = tirx.Cast("float32", node.args[0]), int(exponent.value)
    if 1 <= abs(times) <= _PRODUCTS:
        power = reduce(mul, [base] * abs(times))
        power = power if times > 0 else tirx.const(1.0, "float32") / power
    else:
        is_odd = times % 2
        power = tirx.pow(tirx.abs(base), tirx.const(float(times - is_odd), "float32"))
        power = power * base if is_odd else power
    return tirx.Cast(str(node.ty), power)


@function_pass(calls=[ops.POW])
def WriteOutPowers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that writes powers so that a negative base is none that CUDA has no power of.

    Whole exponents of up to four are products; others are of the base's size, times the base where
    they are odd. Exponents that come at run time, and powers of float64, stay as they are.
    """
    return mapped(func, (tvm.ir.Call, _power))
