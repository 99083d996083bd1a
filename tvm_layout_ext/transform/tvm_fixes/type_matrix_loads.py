"""Give ``ldmatrix`` the element type of the registers that it fills, which printing loses.

TVM 0.27 prints ``T.ptx_legacy.ldmatrix`` without that type and parses it as one of ``int8``. For
that its code generator writes a loop of plain loads in place of a transposing ``ldmatrix``, which
reads beyond the registers.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...ir import ops
from ..base import function_pass

_LDMATRIX = ops.PTX_LEGACY_LDMATRIX
#: Where its arguments name the registers.
_REGISTERS = 3


def _typed(call: Any) -> Any:
    if getattr(call.op, "name", "") != _LDMATRIX:
        return call
    element = tvm.ir.PrimType(str(call.args[_REGISTERS].args[0].dtype))
    if str(call.ty) == str(element):
        return call
    return tvm.ir.Call(call.op, call.args, call.attrs, ret_ty=element)


@function_pass("TypeMatrixLoads")
def _type_matrix_loads(func: tirx.PrimFunc) -> tirx.PrimFunc:
    return func.with_body(tvm_ffi.structural_map(func.body, [(tvm.ir.Call, _typed)], order="post"))


def TypeMatrixLoads() -> Any:
    """Create the pass that gives each ``ldmatrix`` the type of the elements that it loads."""
    return _type_matrix_loads
