"""Give ``ldmatrix`` the element type of the registers that it fills, which printing loses.

TVM 0.27 prints ``T.ptx_legacy.ldmatrix`` without that type and parses it as one of ``int8``. For
that its code generator writes a loop of plain loads in place of a transposing ``ldmatrix``, which
reads beyond the registers.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from ...ir import ops
from ...ir.queries import is_call_of
from ..base import function_pass, mapped

#: Where its arguments name the registers.
_REGISTERS = 3


def _typed(call: Any) -> Any:
    if not is_call_of(call, ops.PTX_LEGACY_LDMATRIX):
        return call
    element = tvm.ir.PrimType(str(call.args[_REGISTERS].args[0].dtype))
    if str(call.ty) == str(element):
        return call
    return tvm.ir.Call(call.op, call.args, call.attrs, ret_ty=element)


@function_pass(calls=[ops.PTX_LEGACY_LDMATRIX])
def TypeMatrixLoads(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that gives each ``ldmatrix`` the type of the elements that it loads."""
    return mapped(func, (tvm.ir.Call, _typed))
