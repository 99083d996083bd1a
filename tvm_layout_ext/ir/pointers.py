"""Instructions that take an address of shared memory, and which element it names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.ir.prim.expr import Ramp

from ..gpu.hardware import MATRIX_ROW_BYTES
from . import ops
from .queries import is_call_of, op_name

#: Calls that give the address of a buffer, or of one element.
OPAQUE = (ops.ADDRESS_OF, ops.TVM_ACCESS_PTR, ops.BUFFER_DATA, ops.PTR_BYTE_OFFSET)


def constant(argument: Any) -> int | None:
    """Value of a constant expression, else None."""
    return int(argument) if isinstance(argument, int | tirx.IntImm) else None


@dataclass(frozen=True)
class PointerOp:
    """An instruction that takes the address of shared memory."""

    kind: str  #: ``ldmatrix``, ``stmatrix`` or ``cp.async``
    #: From the arguments to the number of the one that holds the address.
    pointer: Callable[[Sequence[Any]], int]
    #: From the arguments to the bytes that a lane touches there, or None if that is not constant.
    bytes: Callable[[Sequence[Any]], int | None]
    has_offset: bool = False  #: The argument after the address is added to it, in elements
    #: Number of the argument that holds the global address which a copy reads.
    source: int | None = None


def _matrix_count(args: Sequence[Any]) -> int:
    """Registers before the address of ``tirx.ptx.ldmatrix``: 1, 2 or 4, as ``.num`` says."""
    texts = (str(one.value) for one in args if isinstance(one, tvm.ir.StringImm))
    return next(int(text[1]) for text in texts if text in ("x1", "x2", "x4"))


POINTER_OPS: dict[str, PointerOp] = {
    ops.PTX_LEGACY_LDMATRIX: PointerOp(
        "ldmatrix", lambda _: 5, lambda _: MATRIX_ROW_BYTES, has_offset=True
    ),
    ops.PTX_LDMATRIX: PointerOp("ldmatrix", _matrix_count, lambda _: MATRIX_ROW_BYTES),
    ops.PTX_STMATRIX: PointerOp("stmatrix", lambda _: 0, lambda _: MATRIX_ROW_BYTES),
    ops.PTX_CP_ASYNC_CA: PointerOp(
        "cp.async", lambda _: 0, lambda args: constant(args[2]), source=1
    ),
    ops.PTX_CP_ASYNC_CG: PointerOp(
        "cp.async", lambda _: 0, lambda args: constant(args[2]), source=1
    ),
    ops.S_TIR_CP_ASYNC_RAW: PointerOp(
        "cp.async", lambda _: 0, lambda args: constant(args[4]), has_offset=True, source=2
    ),
}


#: Elements of a dim of whose end nothing is known; TVM 0.27 allots so many.
UNBOUNDED = (1 << 31) - 1


def shape_of(buffer: Any) -> list[int] | None:
    """Extents of a buffer, or what bounds them, as of min(n, 64); None where one has no bound."""
    if any(is_unbounded(extent) for extent in buffer.shape):
        return None
    return [_most(extent) for extent in buffer.shape]


def is_unbounded(extent: Any) -> bool:
    """Whether TVM knows of no bound: the largest int32 is what it knows of a symbol, and allots."""
    return _most(extent) >= UNBOUNDED


def _most(extent: Any) -> int:
    return int(tvm.sym.Analyzer().const_int_bound(extent).max_value)


def strides_of(buffer: Any) -> list[Any]:
    """Strides of a buffer in elements, those of plain rows where it names none."""
    strides = list(buffer.ty.strides)
    if not strides:
        strides = [1] if buffer.shape else []
        for extent in reversed(list(buffer.shape)[1:]):
            strides.insert(0, strides[0] * extent)
    return strides


def offset_of(buffer: Any, indices: Sequence[Any]) -> Any:
    """Elements from a buffer's base pointer to one of it."""
    return buffer.ty.elem_offset + _linear(indices, strides_of(buffer))


def pointer_of(call: Any, op: PointerOp) -> tuple[Any, tuple[Any, ...]] | None:
    """Buffer and indices that an instruction's address names; None where it is not understood."""
    return _element(call, op.pointer(call.args), op)


def source_of(call: Any, op: PointerOp) -> tuple[Any, tuple[Any, ...]] | None:
    """Buffer and indices at which a copy begins to read; None where that is not understood."""
    return None if op.source is None else _element(call, op.source, op)


def _element(call: Any, position: int, op: PointerOp) -> tuple[Any, tuple[Any, ...]] | None:
    pointer = call.args[position]
    while is_call_of(pointer, ops.CUDA_CVTA_GENERIC_TO_SHARED):
        pointer = pointer.args[0]
    more = call.args[position + 1] if op.has_offset else 0
    if is_call_of(pointer, ops.ADDRESS_OF):
        load = pointer.args[0]
        if constant(more) == 0:
            return load.source, tuple(load.indices)
        offset = _linear(load.indices, strides_of(load.source)) + more
        return load.source, _indices(load.source, offset)
    if is_call_of(pointer, ops.TVM_ACCESS_PTR):
        kind, data, offset = pointer.args[:3]
        buffer = data.args[0] if isinstance(data, tvm.ir.Call) else data
        same = str(kind.ty.dtype) == str(buffer.dtype)
        return (buffer, _indices(buffer, offset + more)) if same else None
    if is_call_of(pointer, ops.BUFFER_DATA):
        return pointer.args[0], _indices(pointer.args[0], more)
    return None


def _linear(indices: Sequence[Any], strides: Sequence[Any]) -> Any:
    return sum((i * s for i, s in zip(indices, strides, strict=True)), tirx.IntImm("int32", 0))


def _indices(buffer: Any, offset: Any) -> tuple[Any, ...]:
    """Take an offset apart, the first dim taking whatever is left."""
    parts: list[Any] = []
    for stride in strides_of(buffer)[:-1]:
        parts.append(tirx.floordiv(offset, stride))
        offset = tirx.floormod(offset, stride)
    return (*parts, offset)


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


_EXTERN_CALLS = (ops.CALL_EXTERN, ops.CALL_PURE_EXTERN)
_ATOMIC_CALLS = (ops.CUDA_ATOMIC_ADD, ops.CUDA_ATOMIC_CAS)


def atomic_of(body: Any) -> Any | None:
    """Element that a statement updates by an atomic of CUDA's or TVM's, as a load."""
    if not isinstance(body, tirx.Evaluate) or not isinstance(body.value, tvm.ir.Call):
        return None
    name, args = op_name(body.value), list(body.value.args)
    if name in _EXTERN_CALLS and str(getattr(args[0], "value", "")).startswith("atomic"):
        args = args[1:]
    elif name not in _ATOMIC_CALLS:
        return None
    pointer: Any = args[0] if args else None
    return pointer.args[0] if is_call_of(pointer, ops.ADDRESS_OF) else None
