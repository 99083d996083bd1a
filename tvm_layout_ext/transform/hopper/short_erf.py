"""Compute ``1 + erf(x)``, of which GELU is made, in fewer instructions where 16 bits are stored.

The error function of CUDA chooses coefficients by range. What GELU needs of it is a tail: with
``t = 2 ** P(abs(x))``, where ``P`` is near the logarithm of ``1 - erf(abs(x))``, ``1 + erf(x)`` is
``t`` below 0, and ``2 - t`` above.
"""

from __future__ import annotations

from math import log2
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...ir import ops

#: Of ``P``, from the first power on: fitted to ``log2(erfc(x))`` of 0 to 4.6. GELU is then off by
#: at most 1e-6, and by 6e-5 of it down to -5.5; as float32 computes ``1 + erf`` by 4.7e-4 of it.
_TAIL = (
    -1.6279692649841309,
    -0.9176904559135437,
    -0.1512276977300644,
    0.03290591016411781,
    -0.0048256018199026585,
    0.00041189673356711864,
    -1.5076984709594399e-05,
)


def shorten_erf(value: Any) -> Any:
    """Write each ``c + c * erf(x)`` of float32 in an expression otherwise."""
    return tvm_ffi.structural_map(value, [(tirx.Add, _shortened)], order="post")


def _shortened(node: Any) -> Any:
    for constant, other in ((node.a, node.b), (node.b, node.a)):
        scale, x = _scaled(other)
        if x is not None and isinstance(constant, tirx.FloatImm) and constant.value == scale > 0:
            return _tail(x, scale)
    return node


def _scaled(expr: Any) -> tuple[float, Any]:
    """The factor of an error function of float32, and its argument, None if it is none."""
    if isinstance(expr, tirx.Mul):
        for constant, other in ((expr.a, expr.b), (expr.b, expr.a)):
            if isinstance(constant, tirx.FloatImm):
                scale, x = _scaled(other)
                return scale * float(constant.value), x
    is_erf = isinstance(expr, tvm.ir.Call) and expr.op.name == ops.ERF
    known = is_erf and str(expr.args[0].ty.dtype) == "float32"
    return 1.0, expr.args[0] if known else None


def _tail(x: Any, scale: float) -> Any:
    # Named, or the text of x, and all that it reads, would stand there 17 times.
    own, size, tail = (tirx.Var(name, "float32") for name in ("erf_of", "erf_size", "erf_tail"))
    exponent = tirx.const(_TAIL[-1], "float32")
    for coefficient in (*reversed(_TAIL[:-1]), log2(scale)):
        exponent = exponent * size + tirx.const(coefficient, "float32")
    below = own < tirx.const(0, "float32")
    found = tirx.Select(below, tail, tirx.const(2 * scale, "float32") - tail)
    for var, value in ((tail, tirx.exp2(exponent)), (size, tirx.abs(own)), (own, x)):
        found = tirx.Let(var, value, found)
    return found
