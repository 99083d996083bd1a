"""The calls that store to global memory with an eviction policy, and the plain stores they are."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir.prim.expr import Ramp

from . import ops
from .queries import is_call_of

#: Begins the names of the helpers that store with a policy.
PREFIX = "tvm_layout_ext_store_"


def is_policy_store(call: Any) -> bool:
    """Whether a call is a store with a policy."""
    return is_call_of(call, ops.CUDA_FUNC_CALL) and str(call.args[0].value).startswith(PREFIX)


def plain_store(call: Any) -> Any:
    """The plain store that such a call does the work of."""
    element, value = call.args[1].args[0], call.args[2]
    # TVM may have made the elements of an intermediate vectors already.
    lanes = int(value.ty.dtype.lanes) // int(element.ty.dtype.lanes)
    *outer, first = element.indices
    index = first if lanes == 1 else Ramp(first, 1, lanes)
    return tirx.BufferStore(element.source, value, [*outer, index])
