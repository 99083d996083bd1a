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

from ...ir import ops
from ...ir.queries import is_call_of
from ..base import function_pass, mapped

#: Exponents up to which a power is a product.
_PRODUCTS = 4


def _power(node: Any) -> Any:
    if not is_call_of(node, ops.POW) or str(node.ty) not in ("float16", "float32"):
        return node
    # Of float16 TVM's own is computed in float32, too.
    base, exponent = (tirx.Cast("float32", one) for one in node.args)
    constant = getattr(node.args[1], "value", None)
    if constant is None:
        power = _of_any(base, exponent)
    elif not float(constant).is_integer():
        return node
    elif 1 <= abs(constant) <= _PRODUCTS:
        power = reduce(mul, [base] * int(abs(constant)))
        power = power if constant > 0 else tirx.const(1.0, "float32") / power
    else:
        power = tirx.pow(tirx.abs(base), exponent)
        power = tirx.Select(base < 0, -power, power) if constant % 2 else power
    return tirx.Cast(str(node.ty), power)


def _of_any(base: Any, exponent: Any) -> Any:
    """A power whose exponent is not known: of a negative base by whether that is odd."""
    size = tirx.pow(tirx.abs(base), exponent)
    is_whole = tirx.floor(exponent).equal(exponent)
    is_even = (tirx.floor(exponent / 2) * 2).equal(exponent)
    of_negative = tirx.Select(is_whole, tirx.Select(is_even, size, -size), tirx.pow(base, exponent))
    return tirx.Select(base < 0, of_negative, size)


@function_pass(calls=[ops.POW])
def WriteOutPowers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that writes powers so that a negative base is none that CUDA has no power of.

    Whole exponents of up to four are products; of others a negative base has the power of its size,
    with its sign where the exponent is odd. Powers of float64 stay as they are.
    """
    return mapped(func, (tvm.ir.Call, _power))
