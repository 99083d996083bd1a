"""Write a sigmoid of a vector as the quotient that it is.

TVM 0.27 does so among its last passes, where nothing makes words of the ones in it any more: eight
of float32 are a ``make_ulonglong4`` of eight arguments, which no compiler takes.
"""

from __future__ import annotations

import re
from typing import Any

import tvm
from tvm import tirx

from ....ir import ops
from ....ir.queries import is_call_of
from ...base import function_pass, mapped

#: TVM has types of one element a lane up to four.
_LONG = re.compile(r"float32x([5-9]|\d\d+)")


def _quotient(node: Any) -> Any:
    if not is_call_of(node, ops.SIGMOID) or not _LONG.fullmatch(str(node.ty)):
        return node
    (value,) = node.args
    kind, _, lanes = str(node.ty).rpartition("x")
    one = tirx.Broadcast(tirx.const(1, kind), int(lanes))
    zero = tirx.Broadcast(tirx.const(0, kind), int(lanes))
    return one / (one + tirx.exp(zero - value))


@function_pass(calls=[ops.SIGMOID])
def WriteOutSigmoids(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that writes sigmoids of long vectors as quotients, before ``PackBytes``."""
    return mapped(func, (tvm.ir.Call, _quotient))
