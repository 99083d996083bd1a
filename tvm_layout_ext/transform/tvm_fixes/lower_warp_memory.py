"""Give each lane its part of every ``warp`` buffer.

TVM 0.27's LowerWarpMemory rewrites only the first ``warp`` allocation of a statement sequence; the
others become one full-size array a thread in local memory (apache/tvm#5366, back since allocations
are flat statements). It fails on vectors of more than one fragment, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tvm
from tvm import tirx

from ...gpu.hardware import WARP_SIZE
from ...ir import ops
from ...ir.contents import contents
from ...ir.queries import is_call_of, is_load_of, is_number, loads_in, nodes_in
from ...ir.rebuild import access_rules, call_with
from ..base import function_pass, mapped

#: Calls whose arguments are pointers to registers, each followed by its offset in elements.
_POINTER_CALLS = (ops.PTX_LEGACY_MMA, ops.PTX_LEGACY_LDMATRIX)


def own_lane(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Give each lane its part of every ``warp`` buffer that no other lane touches.

    A buffer of fragments is ``[..., lane, element]`` flat, so every index is ``part * lane +
    rest`` with the same ``part``, the elements of a lane.
    """
    if not (buffers := _warp_buffers(func)):
        return func
    lanes = _lanes(func)
    for buffer in buffers:
        part = _part(func, buffer, lanes)
        if part:
            func = _localize(func, buffer, part, lanes)
    return func


def _lanes(func: tirx.PrimFunc) -> list[Any]:
    launches = [a for a in nodes_in(func.body, tirx.AttrStmt) if a.attr_key == "thread_extent"]
    lanes = [one for one in launches if one.node.thread_tag == "threadIdx.x"]
    return [one.node.var for one in lanes if is_number(one.value, WARP_SIZE)]


def _warp_buffers(func: tirx.PrimFunc) -> list[Any]:
    found = [one.buffer for one in contents(func.body).nodes(tirx.AllocBuffer)]
    return [one for one in found if one.scope() == "warp" and len(one.shape) == 1]


def _part(func: tirx.PrimFunc, buffer: Any, lanes: Sequence[Any]) -> int:
    """Elements of a lane, or 0 if an access is not of the lane's own part."""
    calls = nodes_in(func.body, tvm.ir.Call)
    stores = [one for one in nodes_in(func.body, tirx.BufferStore) if one.buffer.same_as(buffer)]
    loads = [one for one in loads_in(func.body) if is_load_of(one, buffer)]
    offsets = [call.args[at] for call in calls for at in _offsets(call, buffer)]
    indices = [*offsets, *(one.indices[0] for one in (*stores, *loads))]
    splits = (_split(index, lanes) for index in indices)
    parts = {split[0] if split else 0 for split in splits}
    size = int(buffer.shape[0])
    all_known = sum(_is_pointer(call, buffer) for call in calls) == len(offsets)
    part = parts.pop() if len(parts) == 1 and all_known else 0
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
    return is_call_of(node, ops.BUFFER_DATA) and bool(node.args[0].same_as(buffer))


def _offsets(node: Any, buffer: Any) -> Iterator[int]:
    """Positions of the offsets to a buffer among the arguments of a call."""
    if is_call_of(node, *_POINTER_CALLS):
        yield from (at + 1 for at, one in enumerate(node.args) if _is_pointer(one, buffer))


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

    def access(one: Any, indices: Any) -> Any:
        return (local, [own(indices[0])]) if one.same_as(buffer) else None

    def call(node: Any) -> Any:
        offsets = list(_offsets(node, buffer))
        if not offsets:
            return node
        arguments = list(node.args)
        for at in offsets:
            arguments[at - 1], arguments[at] = pointer, own(arguments[at])
        return call_with(node, arguments)

    def alloc(node: Any) -> Any:
        return tirx.AllocBuffer(local) if node.buffer.same_as(buffer) else node

    return mapped(func, *access_rules(access), (tvm.ir.Call, call), (tirx.AllocBuffer, alloc))


def _count(func: tirx.PrimFunc) -> int:
    made = contents(func.body).nodes(tirx.AllocBuffer)
    return sum(one.buffer.scope() == "warp" for one in made)


@function_pass()
def LowerWarpMemoryFully(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that lowers every ``warp`` buffer of an annotated function."""
    func = own_lane(func)
    left = _count(func)
    while left:
        name = func.attrs.get("global_symbol", "main")
        func = tirx.transform.LowerWarpMemory()(tvm.IRModule({name: func}))[name]
        before, left = left, _count(func)
        if left >= before:
            break
    return func
