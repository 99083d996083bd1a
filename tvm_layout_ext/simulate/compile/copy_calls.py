"""Compiles the calls that are asynchronous copies, their groups and waits.

``tirx.s_tir.cp_async_raw`` is what TVM's own lowering makes; a predicate there is not modelled. The
table ops are PTX ``cp.async``: with ``src-size``, so many bytes are read and zeros fill the rest;
with ``ignore-src``, nothing is read where it is true. Threads that read different sizes at once
count as requests of their own. Indices in the address of a source are loaded by every thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import ir, tirx
from tvm.ir.prim.expr import Cast, IntImm, Select

from ...errors import NotModelled
from ...gpu import hardware
from ...ir import ops
from ...ir.queries import is_number, loads_in
from ..memory import async_copy
from ..memory.access import AccessInstruction
from ..memory.async_copy import CopyMode
from ..model.code import VARYING, Code, Run, constant, in_turn, lift, set_slot
from ..model.places import handle
from ..model.values import split_type
from .device import DeviceCompiler, operands_of


def _legacy(c: DeviceCompiler, call: Any) -> Run:
    target, target_at, source, source_at, size, *predicate = call.args
    if predicate and not is_number(predicate[0], -1):
        raise NotModelled("The simulated GPU does not model cp_async_raw with a predicate.")
    width = int(size.value)
    name = c.places.pointed(source).name
    store = _legacy_side(c, target, target_at, width, "cp.async", name)
    load = _legacy_side(c, source, source_at, width, "load")
    # The helper that TVM emits goes past L1 where cp.async.cg is legal.
    way = CopyMode(width, width < hardware.MAX_ACCESS_BYTES)
    return async_copy.copy({width: load}, store, None, way)


def _legacy_side(
    c: DeviceCompiler, pointer: Any, at: Any, width: int, kind: str, source: str = ""
) -> AccessInstruction:
    place = c.places.pointed(pointer)
    # The emitted helper scales offsets by the size of the pointer's own element type.
    unit, _ = split_type(str(pointer.ty.element_type.dtype))
    if unit != place.dtype:
        place = replace(place, dtype=unit)
    return _side(c, place, at, width, kind, source)


def _side(
    c: DeviceCompiler, place: Any, at: Any, width: int, kind: str, source: str = ""
) -> AccessInstruction:
    name = c.names.of(place, at, width)
    if kind == "cp.async":
        c.enter_block(name, source)
    return c.access(place, at, max(width // place.dtype.itemsize, 1), True, kind, name)


def _table(c: DeviceCompiler, call: Any) -> Run | None:
    operands, (*modifiers, flags) = operands_of(call)
    if "pred" in flags.split(","):
        raise NotModelled(f"The simulated GPU does not model {call.op.name} with a predicate.")
    if "L2::cache_hint" in modifiers:
        operands.pop()
    target, source, size, *tail = operands
    width = int(size.value)
    place, at = c.pointee(source)
    keep = None
    if tail and loads_in(at):
        at, keep = _kept(c, at)
    return in_turn([keep, _table_at(c, call, (place, at), target, width, tail)])


def _kept(c: DeviceCompiler, index: Any) -> tuple[Any, Run]:
    """A variable for an index, and what gives it its value for all active threads."""
    code, slot = c.expr(index), c.new_slot()
    var = tirx.Var("address", index.ty)
    c.scope[handle(var)] = Code(lambda s, m: s.slots[slot], code.rank, code.taint)
    return var, set_slot(slot, code)


def _table_at(
    c: DeviceCompiler, call: Any, source: tuple[Any, Any], target: Any, width: int, tail: Any
) -> Run:
    from_place, from_at = source
    to_place, to_at = c.pointee(target)
    store = _side(c, to_place, to_at, width, "cp.async", from_place.name)

    def load(read: int) -> AccessInstruction:
        return _side(c, from_place, from_at, read, "load")

    way = CopyMode(width, call.op.name.startswith(ops.PTX_CP_ASYNC_CA))
    if tail and call.op.name.endswith("src_size"):
        return _of_size(c, load, store, tail[0], way)
    size = None
    if tail:
        size = lift(lambda ignored: np.where(ignored, 0, width), c.expr(tail[0]))
    return async_copy.copy({width: load(width)}, store, size, way)


def _of_size(
    c: DeviceCompiler,
    load: Callable[[int], AccessInstruction],
    store: AccessInstruction,
    size: Any,
    way: CopyMode,
) -> Run:
    """Compile a copy that reads so many bytes and fills up with zeros."""
    width = way.width
    way = replace(way, fills=not _all_or_nothing(size, width))
    if isinstance(size, IntImm):
        read = int(size.value)
        if not 0 <= read <= width:
            raise NotModelled(
                f"cp.async of {width} bytes with {read} bytes of source is undefined."
            )
        loads = {read or width: load(read or width)}
        return async_copy.copy(loads, store, None if read else constant(0), way)
    step = store.place.dtype.itemsize
    loads = {read: load(read) for read in range(width, 0, -step)}

    pair = c.expr(size).pair

    def legal(s: Any, m: Any) -> Any:
        value, poison = pair(s, m)
        found = np.broadcast_to(value, (s.batch.size,))
        odd = s.batch.active(m) & (found != 0) & ~np.isin(found, list(loads))
        if odd.any():
            raise NotModelled(
                f"A cp.async of {width} bytes with {int(found[odd][0])} bytes of source; the "
                f"simulated GPU models multiples of {step} from 0 to {width}."
            )
        return found, poison

    return async_copy.copy(loads, store, Code(legal, VARYING, True), way)


def _all_or_nothing(size: Any, width: int) -> bool:
    """Whether ptxas sees that a size is 0 or all: a predicate then, and no ``LDGSTS.ZFILL``."""
    if isinstance(size, IntImm):
        return int(size.value) in (0, width)
    if isinstance(size, Cast):
        return _all_or_nothing(size.value, width)
    if isinstance(size, Select):
        return all(_all_or_nothing(x, width) for x in (size.true_value, size.false_value))
    if isinstance(size, ir.Call) and size.op.name.endswith("if_then_else"):
        return all(_all_or_nothing(x, width) for x in size.args[1:3])
    return False


def _wait(c: DeviceCompiler, call: Any) -> Run:
    groups = [a for a in call.args if isinstance(a, IntImm)]
    return async_copy.wait(constant(np.int64(groups[0].value)))


#: Op name -> its compiler.
COPY_CALLS: dict[str, Callable[[Any, Any], Run | None]] = {
    ops.S_TIR_CP_ASYNC_RAW: _legacy,
    **{
        f"{name}{tail}": _table
        for name in (ops.PTX_CP_ASYNC_CA, ops.PTX_CP_ASYNC_CG)
        for tail in ("", "_src_size", "_ignore_src")
    },
    ops.PTX_CP_ASYNC_COMMIT_GROUP: lambda c, call: async_copy.commit,
    ops.PTX_CP_ASYNC_WAIT_GROUP: _wait,
    # Copies that are in no group yet count, too: one more group than there are.
    ops.PTX_CP_ASYNC_WAIT_ALL: lambda c, call: async_copy.wait(constant(np.int64(-1))),
}
