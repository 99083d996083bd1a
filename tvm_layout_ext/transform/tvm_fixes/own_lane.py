"""Turn ``warp`` buffers of which each lane touches only its own part into ``local`` ones.

For :mod:`.lower_warp_memory`, which names what TVM 0.27 gets wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...gpu.hardware import WARP_SIZE
from ...ir import ops

#: Calls whose arguments are pointers to registers, each followed by its offset in elements.
_POINTER_CALLS = (ops.PTX_LEGACY_MMA, ops.PTX_LEGACY_LDMATRIX)


def own_lane(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Give each lane its part of every ``warp`` buffer that no other lane touches.

    A buffer of fragments is ``[..., lane, element]`` flat, so every index is ``part * lane +
    rest`` with the same ``part``, the elements of a lane.
    """
    lanes = _lanes(func)
    for buffer in _warp_buffers(func):
        part = _part(func, buffer, lanes)
        if part:
            func = _localize(func, buffer, part, lanes)
    return func


def _lanes(func: tirx.PrimFunc) -> list[Any]:
    """Variables that count the lanes of one warp."""
    found: list[Any] = []

    def look(node: Any) -> None:
        if node.attr_key == "thread_extent" and node.node.thread_tag == "threadIdx.x":
            found.append((node.node.var, node.value))

    tvm_ffi.structural_walk(func.body, [(tirx.AttrStmt, look)])
    return [v for v, extent in found if isinstance(extent, tirx.IntImm) and extent == WARP_SIZE]


def _warp_buffers(func: tirx.PrimFunc) -> list[Any]:
    found: list[Any] = []

    def look(node: Any) -> None:
        if node.buffer.scope() == "warp" and len(node.buffer.shape) == 1:
            found.append(node.buffer)

    tvm_ffi.structural_walk(func.body, [(tirx.AllocBuffer, look)])
    return found


def _part(func: tirx.PrimFunc, buffer: Any, lanes: Sequence[Any]) -> int:
    """Elements of a lane, or 0 if an access is not of the lane's own part."""
    parts: set[int] = set()
    pointers = 0

    def index(value: Any) -> None:
        split = _split(value, lanes)
        parts.add(split[0] if split else 0)

    def load(node: Any) -> None:
        if node.source.same_as(buffer):
            index(node.indices[0])

    def store(node: Any) -> None:
        if node.buffer.same_as(buffer):
            index(node.indices[0])

    def call(node: Any) -> None:
        nonlocal pointers
        pointers += _is_pointer(node, buffer)
        for at in _offsets(node, buffer):
            pointers -= 1
            index(node.args[at])

    rules = [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store), (tvm.ir.Call, call)]
    tvm_ffi.structural_walk(func.body, rules)
    size = int(buffer.shape[0])
    part = parts.pop() if len(parts) == 1 and pointers == 0 else 0
    return part if part > 0 and size % (part * WARP_SIZE) == 0 else 0


def _split(index: Any, lanes: Sequence[Any]) -> tuple[int, Any] | None:
    """``(part, rest)`` of an index ``part * lane + rest``; of a vector's first element."""
    index = index.base if isinstance(index, tirx.Ramp) else index
    for lane in lanes:
        linear = tvm.sym.detect_linear_equation(index, [lane])
        if linear and isinstance(linear[0], tirx.IntImm) and int(linear[0]):
            return int(linear[0]), linear[1]
    return None


def _is_pointer(node: Any, buffer: Any) -> bool:
    return getattr(node.op, "name", "") == ops.BUFFER_DATA and node.args[0].same_as(buffer)


def _offsets(node: Any, buffer: Any) -> Iterator[int]:
    """Positions of the offsets to a buffer among the arguments of a call."""
    if getattr(node.op, "name", "") in _POINTER_CALLS:
        for at, argument in enumerate(node.args):
            if isinstance(argument, tvm.ir.Call) and _is_pointer(argument, buffer):
                yield at + 1


def _localize(func: tirx.PrimFunc, buffer: Any, part: int, lanes: Sequence[Any]) -> tirx.PrimFunc:
    tile = part * WARP_SIZE
    size = int(buffer.shape[0]) // WARP_SIZE
    local = tirx.decl_buffer([size], buffer.dtype, str(buffer.name), scope="local")
    pointer = local.data

    def own(index: Any) -> Any:
        split = _split(index, lanes)
        assert split is not None  # _part has seen every index
        rest = split[1]
        base = tirx.floordiv(rest, tile) * part + tirx.floormod(rest, tile)
        base = tvm.sym.Analyzer().simplify(base)
        return tirx.Ramp(base, index.stride, index.lanes) if isinstance(index, tirx.Ramp) else base

    def load(node: Any) -> Any:
        if not node.source.same_as(buffer):
            return node
        return tirx.BufferLoad(local, [own(node.indices[0])])

    def store(node: Any) -> Any:
        if not node.buffer.same_as(buffer):
            return node
        return tirx.BufferStore(local, node.value, [own(node.indices[0])])

    def call(node: Any) -> Any:
        offsets = list(_offsets(node, buffer))
        if not offsets:
            return node
        arguments = list(node.args)
        for at in offsets:
            arguments[at - 1], arguments[at] = pointer, own(arguments[at])
        return tvm.ir.Call(node.op, arguments, node.attrs, ret_ty=node.ty)

    def alloc(node: Any) -> Any:
        return tirx.AllocBuffer(local) if node.buffer.same_as(buffer) else node

    rules = [
        (tvm.ir.TensorLoad, load),
        (tirx.BufferStore, store),
        (tvm.ir.Call, call),
        (tirx.AllocBuffer, alloc),
    ]
    return func.with_body(tvm_ffi.structural_map(func.body, rules, order="post"))
