"""Write names of ``mma``'s operands in small letters where TVM would replace letters in them.

TVM 0.27 replaces the letters A, B, C and D of a template by the names of operands, one after the
other, and finds the later letters in the names that it has put in. Of a product of ``B`` and ``A``
it writes ``A_warp_ptr + 0_warp_ptr + 0``, which nvcc refuses.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import tvm
from tvm import tirx

from ...ir import ops
from ...ir.queries import is_call_of, nodes_in, substitute, variables
from ..base import function_pass

_MMA = ops.PTX_LEGACY_MMA
#: Pointer and offset of A, B and C among the arguments, with the placeholders replaced after them.
_OPERANDS = (((6, 7), "BCD"), ((8, 9), "CD"), ((10, 11), "D"))


@function_pass(calls=[_MMA])
def RenameOperands(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that writes names of ``mma``'s operands in small letters where it must."""
    renamed: dict[Any, Any] = {}
    calls = [one for one in nodes_in(func.body, tvm.ir.Call) if is_call_of(one, _MMA)]
    for call, (places, letters) in product(calls, _OPERANDS):
        for var in (v for place in places for v in variables(call.args[place])):
            if not {*letters}.isdisjoint(var.name) and var not in renamed:
                renamed[var] = tirx.Var(var.name.lower(), var.ty)
    return func.with_body(substitute(func.body, renamed)) if renamed else func
