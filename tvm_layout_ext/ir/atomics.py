"""Statements that update one buffer element atomically."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from . import ops
from .queries import is_call_of

_EXTERN_CALLS = (ops.CALL_EXTERN, ops.CALL_PURE_EXTERN)
_ATOMIC_CALLS = (ops.CUDA_ATOMIC_ADD, ops.CUDA_ATOMIC_CAS)


def atomic_of(body: Any) -> Any | None:
    """Element that a statement updates by an atomic of CUDA's or TVM's, as a load."""
    if not isinstance(body, tirx.Evaluate) or not isinstance(body.value, tvm.ir.Call):
        return None
    name, args = str(getattr(body.value.op, "name", "")), list(body.value.args)
    if name in _EXTERN_CALLS and str(getattr(args[0], "value", "")).startswith("atomic"):
        args = args[1:]
    elif name not in _ATOMIC_CALLS:
        return None
    pointer: Any = args[0] if args else None
    return pointer.args[0] if is_call_of(pointer, ops.ADDRESS_OF) else None
