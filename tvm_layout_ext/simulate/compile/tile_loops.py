"""Legacy matrix ops that TVM's CUDA code generator prints as plain loops, as the same loops in TIR.

They are ``mma_fill`` (zeros), ``mma_store`` (a 16x16 tile of C, element by element), and
``ldmatrix`` of transposed 8-bit data, which no instruction can do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from ...errors import NotModelled
from ...ir import ops
from ...ir.queries import is_call_of
from ..model.code import FIXED, Code, Run
from ..model.places import handle
from .device import DeviceCompiler

_TILE = 16
_TILE_ELEMENTS = 8
_TRANSPOSED_BYTES = 16


def _loop(c: DeviceCompiler, extent: int, body: Callable[[Any], Any]) -> Run | None:
    """Compile ``for (i = 0; i < extent; ++i)``; its accesses belong to the current statement."""
    index = tirx.Var("i", "int32")
    return c.plain(tirx.For(index, 0, extent, tirx.ForKind.SERIAL, body(index)))


def _thread(c: DeviceCompiler) -> Any:
    """A variable that holds ``threadIdx.x``, which the printed loops name outright."""
    tx = tirx.Var("tx", "int32")
    c.scope[handle(tx)] = Code(lambda s, m: s.batch.index["threadIdx.x"], FIXED)
    return tx


def _target(pointer: Any) -> tuple[Any, Any]:
    if is_call_of(pointer, ops.BUFFER_DATA):
        return pointer.args[0], tirx.IntImm("int32", 0)
    if is_call_of(pointer, ops.ADDRESS_OF):
        load = pointer.args[0]
        if len(load.indices) == 1:
            return load.source, load.indices[0]
    raise NotModelled(f"Cannot tell which buffer the pointer {pointer} of a tile points into.")


def fill_tile(c: DeviceCompiler, call: Any) -> Run | None:
    """Compile ``mma_fill``: a thread's part of a tile becomes zero."""
    size, pointer, offset = call.args
    buffer, start = _target(pointer)
    zero = tirx.const(0, buffer.dtype)
    return _loop(c, int(size.value), lambda i: tirx.BufferStore(buffer, zero, [start + offset + i]))


def store_tile(c: DeviceCompiler, call: Any) -> Run | None:
    """Compile ``mma_store`` of a 16x16 tile: 8 stores of one element a thread."""
    rows, columns, pointer, source, offset, stride = call.args
    if int(rows.value) != _TILE or int(columns.value) != _TILE:
        raise NotModelled(
            f"The simulated GPU does not model mma_store of {rows.value}x{columns.value} tiles."
        )
    to, start = _target(pointer)
    buffer, first = _target(source)
    tx = _thread(c)

    def body(i: Any) -> Any:
        # What depends on the thread and what on the loop stay apart, so that each is computed once.
        mine = tx // 4 * stride + tx % 4 * 2
        turn = i % 4 // 2 * 8 * stride + i // 4 * 8 + i % 2
        value = tirx.BufferLoad(buffer, [first + offset + i])
        return tirx.BufferStore(to, value, [start + mine + turn])

    return _loop(c, _TILE_ELEMENTS, body)


def load_transposed_bytes(c: DeviceCompiler, call: Any) -> Run | None:
    """``ldmatrix`` of 8-bit data with ``trans``: 16 loads; the offset is a row's length."""
    local, offset, shared, stride = call.args[3:]
    to, first = _target(local)
    buffer, start = _target(shared)
    tx = _thread(c)

    def body(i: Any) -> Any:
        mine = tx % 4 * 4 * stride + tx // 4
        turn = (i % 8 // 4 * 16 + i % 4) * stride + i // 8 * 8
        value = tirx.BufferLoad(buffer, [start + mine + turn])
        return tirx.BufferStore(to, value, [first + offset + i])

    return _loop(c, _TRANSPOSED_BYTES, body)
