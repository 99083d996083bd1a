"""Bring what sines and cosines are taken of near zero.

TVM 0.27 compiles with ``--use_fast_math``, by which ``cosf`` is ``__cosf``, whose error is bounded
for angles of half a turn at most (CUDA C++ Programming Guide, "Intrinsic Functions"): it cuts the
quotient by a turn off at 24 bits, so that the error grows with the angle. Rotary embeddings ask for
as many radians as there are places.
"""

from __future__ import annotations

from math import pi
from typing import Any

import numpy as np
import tvm
from tvm import tirx

from ....ir import ops
from ....ir.queries import is_call_of
from ...base import function_pass, mapped

_FUNCTIONS = {ops.SIN: tirx.sin, ops.COS: tirx.cos}
#: A turn, as a number of float32 and what that leaves of it.
_TURN = float(np.float32(2 * pi))
_REST = 2 * pi - _TURN


def _reduced(node: Any) -> Any:
    if not is_call_of(node, *_FUNCTIONS) or str(node.ty) != "float32":
        return node
    angle, per_turn = node.args[0], tirx.const(0.5 / pi, "float32")
    turns = tirx.nearbyint(angle * per_turn)
    # Either difference is one operation, which rounds once, so that no bit of the angle is lost.
    near = angle - turns * tirx.const(_TURN, "float32")
    near = near - turns * tirx.const(_REST, "float32")
    return _FUNCTIONS[node.op.name](near)


@function_pass(calls=[*_FUNCTIONS])
def ReduceAngles(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that takes whole turns off what sines and cosines of float32 are taken of."""
    return mapped(func, (tvm.ir.Call, _reduced))
