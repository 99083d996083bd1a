"""What ``auto_coalesce`` refuses before it tries anything, and which loops it may map."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from ..analysis.nest import Access, Loop, Nest
from ..errors import ScheduleError
from ..ir.annotations import DONE
from ..ir.block_body import is_mappable, is_reduction_step
from ..ir.evaluate import KNOWN_CALLS
from ..ir.walk import loop_kind
from .request import NAME, Request

#: Axes whose iterations may run in any order.
_FREE_AXES = (tirx.IterVar.DataPar, tirx.IterVar.CommReduce)


def check_place(sch: Any, block: Any) -> None:
    """Refuse a function's outermost block, and one inside a block whose loops are bound."""
    if sch.get_sref(block).parent is None:
        raise ScheduleError(
            f"Block {sch.get(block).name_hint} is the outermost of its function, around which no "
            f"loop stands; {NAME} needs a block in loops."
        )
    outer = sch.get_sref(block).parent
    while not isinstance(outer.stmt, s_tir.SBlock):
        outer = outer.parent
    around = outer.stmt
    while (outer := outer.parent) is not None:
        if isinstance(outer.stmt, tirx.For) and "Idx" in (kind := loop_kind(outer.stmt)):
            raise ScheduleError(
                f"Block {sch.get(block).name_hint} is inside block {around.name_hint}, whose loop "
                f"{outer.stmt.loop_var.name} is already bound to {kind}; {NAME} needs loops that "
                "are not bound yet."
            )


def check(nest: Nest) -> None:
    """Refuse a block that no mapping suits.

    Raises ScheduleError if it is opaque or one of its axes is, has a loop of extent 0, reaches
    further than its indices can, or indexes by a function whose values are not known.
    """
    name = nest.block.name_hint
    _check_body(nest.block)
    _check_axes(nest.block)
    _check_sums(nest)
    empty = [loop for loop in nest.loops if loop.size == 0]
    if empty:
        raise ScheduleError(
            f"Loop {empty[0].var.name} of block {name} has extent 0, so there is nothing to map."
        )
    for access in nest.accesses:
        check_reach(access.buffer, name)
        call = _unknown_call(access)
        if call is not None:
            raise ScheduleError(
                f"Block {name} indexes {access.name} by {call}, whose values are not known; "
                f"indices may use arithmetic and loads."
            )


def _check_body(block: Any) -> None:
    reduces = any(int(axis.iter_type) == tirx.IterVar.CommReduce for axis in block.iter_vars)
    fits = is_reduction_step if reduces else is_mappable
    if block.iter_vars and fits(block.body):
        return
    raise ScheduleError(
        f"Block {block.name_hint} is opaque; {NAME} re-maps only blocks of stores to, and atomics "
        "on, buffer elements, which may be under if statements and use let statements; reductions "
        "of stores and let statements alone."
    )


def _check_axes(block: Any) -> None:
    for axis in block.iter_vars:
        if int(axis.iter_type) not in _FREE_AXES:
            raise ScheduleError(
                f"Axis {axis.var.name} of block {block.name_hint} is neither spatial nor one of a "
                f"reduction, so its iterations keep their order; {NAME} maps no such block."
            )


def _check_sums(nest: Nest) -> None:
    """Refuse a reduction of which a loop is both results and what one of them sums."""
    mixed = [loop for loop in nest.loops if loop.is_reduction and loop.is_data]
    if mixed:
        raise ScheduleError(
            f"Loop {mixed[0].var.name} of block {nest.block.name_hint} stands behind axes of its "
            f"results and of its reduction, so threads that share it out would add up several "
            f"results; {NAME} needs loops of their own for both."
        )


def check_reach(buffer: Any, block: str) -> None:
    """Refuse arrays that 32-bit indices cannot reach over; TVM would wrap them silently."""
    ty = buffer.ty
    parts = [*buffer.shape, *ty.strides]
    if any(not isinstance(n, tirx.IntImm) or str(n.ty) != "int32" for n in parts):
        return
    shape = [int(n) for n in buffer.shape]
    size = prod(shape)
    if ty.strides:
        size = sum((n - 1) * int(s) for n, s in zip(shape, ty.strides, strict=True)) + 1
    if isinstance(ty.elem_offset, int | tirx.IntImm):
        size += int(ty.elem_offset)
    if size >= 1 << 31:
        raise ScheduleError(
            f"Buffer {buffer.name} of block {block} spans {size:,} elements, too many for the "
            '32-bit indices that its shape and strides have; declare them as "int64".'
        )


def _unknown_call(access: Access) -> str | None:
    calls: list[str] = []
    look = (tvm.ir.Call, lambda call: calls.append(str(getattr(call.op, "name", call.op))))
    tvm_ffi.structural_walk(access.offset, [look])
    return next((call for call in calls if call not in KNOWN_CALLS), None)


def enclosing_threads(sch: Any, block: Any, nest: Nest) -> dict[str, int] | None:
    """Thread axes of the kernel around a block that has no threads of its own, or None.

    Raises ScheduleError if loops of the block itself are bound, by an earlier call or otherwise.
    """
    bound = [loop for loop in nest.loops if "Idx" in loop.kind]
    if not bound:
        return None
    name = nest.block.name_hint
    mine = [loop for loop in bound if loop.kind.startswith("threadIdx") or loop.is_perfect]
    if mine and DONE in nest.block.annotations:
        raise ScheduleError(
            f"Block {name} is mapped already: {NAME} made it {nest.block.annotations[DONE]}; "
            "call it once for a block, with the arguments that are to hold."
        )
    if mine:
        raise ScheduleError(
            f"Loop {mine[0].var.name} of block {name} is already bound to {mine[0].kind}; "
            f"{NAME} needs loops that are not bound yet."
        )
    found: dict[str, int] = {}

    def look(loop: Any) -> None:
        kind = loop_kind(loop)
        if kind.startswith("threadIdx"):
            found[kind] = int(loop.extent)

    first = next(i for i, loop in enumerate(nest.loops) if "Idx" in loop.kind)
    tvm_ffi.structural_walk(sch.get(sch.get_loops(block)[first]), [(tirx.For, look)])
    return found


def check_registers(nest: Nest) -> None:
    """Refuse a block inside a kernel that fills registers, which other threads do not see."""
    own = next((a.name for a in nest.accesses if a.kind == "store" and a.scope == "local"), None)
    if own is not None:
        raise ScheduleError(
            f"Block {nest.block.name_hint} stores {own}, registers of each thread, which hold "
            "only what that thread stores; spread over threads, it would leave its readers "
            "without the rest; compute it at a loop of its reader that is bound to threads, or "
            'let its result lie in "shared" memory.'
        )


def threads_of(nest: Nest, kernel: dict[str, int], request: Request) -> dict[str, int]:
    """Thread axes to spread a block in a kernel over; 128 where the kernel has none yet.

    Raises ScheduleError if the request is for another number than the kernel has.
    """
    threads = kernel or {"threadIdx.x": request.num_threads or 128}
    total = prod(threads.values())
    if request.num_threads not in (None, total):
        raise ScheduleError(
            f"The kernel around block {nest.block.name_hint} has {total} threads; "
            f"{NAME} cannot give the block {request.num_threads}."
        )
    return threads


def free_loops(nest: Nest, *, inside: bool) -> list[Loop]:
    """Loops that may be mapped: all, or those of the block alone where it is inside a kernel.

    Raises ScheduleError if there is none, one is not serial, or one holds other blocks, too.
    """
    loops: Sequence[Loop] = nest.loops
    if inside:
        loops = [loop for loop in loops if loop.is_perfect]
    name = nest.block.name_hint
    for loop in loops:
        if not loop.is_perfect:
            raise ScheduleError(
                f"Loop {loop.var.name} holds other blocks beside {name}, so {NAME} cannot bind "
                "it; bind it first, or give the block loops of its own."
            )
        if loop.kind not in ("serial", "unrolled"):
            raise ScheduleError(
                f"Loop {loop.var.name} of block {name} is already {loop.kind}; "
                f"{NAME} needs serial loops."
            )
    if not loops:
        raise ScheduleError(f"Block {name} has no loop of its own for {NAME} to map.")
    return list(loops)


def why_none(sch: Any, block: Any, nest: Nest) -> str | None:
    """Say in the block's names why TensorIR binds none of its loops, where that is known.

    TVM's own sentences name loops by the order in which it prints them.
    """
    name = nest.block.name_hint
    for ref in map(sch.get, sch.get_loops(block)):
        if not (isinstance(ref.min, tirx.IntImm) and int(ref.min) == 0):
            loop = ref.loop_var.name
            return (
                f"loop {loop} starts at {ref.min}, and TensorIR maps only loops from 0; let {loop} "
                f"run over its {ref.extent} values from 0, and add {ref.min} where {name} uses it"
            )
    return None
