"""Map the iterations of a block to threads so that its memory requests are full and wide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from .. import decisions
from ..analysis.nest import Loop, Nest, read_nest
from ..coalesce.canonical import canonicalize_loops
from ..coalesce.checks import (
    check,
    check_place,
    check_registers,
    enclosing_threads,
    free_loops,
    threads_of,
)
from ..coalesce.choose import Outcome, Strategy, choose
from ..coalesce.direct import schedule_copy, schedule_direct
from ..coalesce.fused_loops import delinearize_loop, is_linearized, why_not_linearized
from ..coalesce.mapping import store_mapping
from ..coalesce.privatize import privatize_inplace, privatize_writers
from ..coalesce.request import NAME, Request, request_of
from ..coalesce.sectors import Traffic, count_traffic
from ..coalesce.split_reads import split_aliasing_reads
from ..coalesce.strategies import identity_mapping, list_strategies
from ..errors import ScheduleError
from ..ir.annotations import COALESCE, DONE


def coalesce(sch: Any, block: Any, request: Request) -> Outcome:
    """Re-map a block of a schedule; everything done to it is traced.

    Where no traced primitive does what is needed, the block is only marked, and the pass maps it
    when the program is lowered: where reads of one buffer have to be parted first, where the block
    updates a buffer in place, where it is a reduction into, or to be staged before, a buffer that
    other blocks write, too, and where it is to be staged and one loop is several of its iterators.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
    block : SBlockRV
    request : Request

    Raises
    ------
    ScheduleError
        If the block cannot be re-mapped; the schedule is then as it was.
    """
    outcome, way = _decide(sch, block, request)
    if COALESCE in sch.get(block).annotations:
        sch.unannotate(block, COALESCE)
    if way.is_late:
        sch.annotate(block, COALESCE, request.as_annotation())
        return replace(outcome, text=f"when the program is lowered, {outcome.text}")
    way.run(sch, block)
    sch.annotate(block, DONE, way.path)
    return outcome


def _decide(sch: Any, block: Any, request: Request) -> tuple[Outcome, Strategy]:
    check_place(sch, block)
    nest = read_nest(sch, block)
    check(nest)
    lent = privatize_inplace(sch, nest)
    if lent is None:
        return _decide_apart(sch, block, nest, request, ())
    nest = read_nest(lent.sch, lent.block)
    # A lane of a shifted vector loads a neighbour's elements, too, which may be stored by then.
    outcome, way = _decide_apart(lent.sch, lent.block, nest, request, ("shifted",))
    return outcome, replace(way, lent=lent)


def _decide_apart(
    sch: Any, block: Any, nest: Nest, request: Request, illegal: Sequence[str]
) -> tuple[Outcome, Strategy]:
    """Decide on a block that reads no buffer which it writes, by paths that are legal."""
    kernel = enclosing_threads(sch, block, nest)
    free = free_loops(nest, inside=kernel is not None)
    if kernel is not None:
        check_registers(nest)
    before = _start(sch, block, nest, free, kernel, request)
    ways = _list(sch, block, nest, request, illegal, kernel)
    outcome, way = choose(sch, block, nest, before, ways)
    decisions.note(NAME, str(nest.block.name_hint), outcome.text)
    return outcome, way


def _list(
    sch: Any,
    block: Any,
    nest: Nest,
    request: Request,
    illegal: Sequence[str],
    kernel: dict[str, int] | None,
) -> list[Strategy]:
    """List the ways to try, each in a program that TensorIR takes it in."""
    free = free_loops(nest, inside=kernel is not None)
    ways = [way for way in list_strategies(nest, free, kernel, request) if way.path not in illegal]
    ways = [_in_own_program(sch, block, nest, way, request) for way in ways]
    more = [] if kernel is not None else _a_dim_a_loop(sch, block, nest, request)
    if not more and kernel is None and not illegal:
        more = _of_a_fused_loop(sch, block, nest, request)
    if more:
        ways = [way for way in ways if way.path != "staged"]
        ways += [way for way in more if way.path not in illegal]
    return ways


def _a_dim_a_loop(sch: Any, block: Any, nest: Nest, request: Request) -> list[Strategy]:
    """List the ways that a block has once each of its loops is a dim, if they are not yet."""
    if nest.is_guarded or any(loop.is_reduction or loop.size is None for loop in nest.loops):
        return []
    ways = _ways_by_dims(sch, block, request)
    try:
        lent = privatize_writers(sch, nest) if ways else None
    except ScheduleError as error:
        staged = [_impossible("staged", str(error).rstrip("."))]
    else:
        if lent is None:
            return ways
        found = _ways_by_dims(lent.sch, lent.block, request)
        staged = [replace(way, lent=lent) for way in found if way.path == "staged"]
    return [way for way in ways if way.path != "staged"] + staged


def _ways_by_dims(sch: Any, block: Any, request: Request) -> list[Strategy]:
    trial = sch.copy()
    try:
        if not canonicalize_loops(trial, block):
            return []
    except RuntimeError:
        return []
    own = read_nest(trial, block)
    ways = list_strategies(own, free_loops(own, inside=False), None, request)
    return [replace(way, apply=partial(_apply_to_dims, way)) for way in ways]


def _of_a_fused_loop(sch: Any, block: Any, nest: Nest, request: Request) -> list[Strategy]:
    """List the ways to stage a block whose loops are several iterators each, or say why none."""
    fused = is_linearized(sch, block, nest)
    if fused is None and len(nest.loops) == len(nest.block.iter_vars):
        return []
    if request.stage == "none" or any(loop.is_reduction for loop in nest.loops):
        return []
    known = not nest.is_guarded and all(loop.size is not None for loop in nest.loops)
    lent = delinearize_loop(sch, block, nest) if known else None
    if lent is None:
        return (
            [_impossible("staged", why_not_linearized(sch, nest, fused))]
            if fused is not None
            else []
        )
    own = read_nest(lent.sch, lent.block)
    ways = [
        _in_own_program(lent.sch, lent.block, own, way, request)
        for way in _ways_of(own, "staged", request)
    ]
    return [replace(way, lent=way.lent or lent) for way in ways]


def _impossible(path: str, why: str) -> Strategy:
    def refuse(_sch: Any, _block: Any) -> tuple[str, list[Any]]:
        raise ScheduleError(why)

    return Strategy(path, refuse)


def _apply_to_dims(way: Strategy, sch: Any, block: Any) -> tuple[str, list[Any]]:
    canonicalize_loops(sch, block)
    return way.apply(sch, block)


def _in_own_program(sch: Any, block: Any, nest: Nest, way: Strategy, request: Request) -> Strategy:
    """Take a way to a program that TensorIR takes it in, where it does not in the schedule's."""
    try:
        lent = privatize_writers(sch, nest) if way.path in ("staged", "reduction") else None
    except ScheduleError as error:
        return _impossible(way.path, str(error).rstrip("."))
    if lent is None:
        return _in_parted_reads(sch, nest, way, request)
    own = read_nest(lent.sch, lent.block)
    found = _ways_of(own, way.path, request)
    way = replace(next(one for one in found if one.is_last == way.is_last), lent=lent)
    return _in_parted_reads(lent.sch, own, way, request)


def _ways_of(nest: Nest, path: str, request: Request) -> list[Strategy]:
    """List the ways of one path for a block that is in no kernel."""
    free = free_loops(nest, inside=False)
    return [way for way in list_strategies(nest, free, None, request) if way.path == path]


def _in_parted_reads(sch: Any, nest: Nest, way: Strategy, request: Request) -> Strategy:
    """Stage a block that reads a buffer at several places as if these were several buffers."""
    written = [access.buffer for access in nest.accesses if access.kind != "load"]
    read = [access.buffer for access in nest.accesses if access.kind == "load"]
    if way.path != "staged" or any(a.same_as(b) for a in read for b in written):
        return way
    parted = split_aliasing_reads(sch, nest, store_mapping(nest, nest.loops, 1).disagreeing)
    if parted is None:
        return way
    own = read_nest(parted.sch, parted.block)
    found = _ways_of(own, "staged", request)
    free = free_loops(own, inside=False)
    before = _start(parted.sch, parted.block, own, free, None, request)
    return replace(found[0], parted=parted, before=before, lent=way.lent) if found else way


def _start(
    sch: Any,
    block: Any,
    nest: Nest,
    free: Sequence[Loop],
    kernel: dict[str, int] | None,
    request: Request,
) -> tuple[Traffic, ...]:
    """Count an unbound block as its loops would run if they were just fused over the threads.

    Loops of a reduction that stand around those of its results come inside of them. Nothing is
    counted where that is not possible.
    """
    plain = sch.copy()
    data = [loop for loop in free if not loop.is_reduction]
    if not data:
        return ()
    try:
        if kernel is not None:
            threads = threads_of(nest, kernel, request)
            schedule_copy(plain, block, nest, identity_mapping(data), threads)
        else:
            schedule_direct(plain, block, nest, identity_mapping(data), request.num_threads)
        return tuple(count_traffic(read_nest(plain, block)))
    except (RuntimeError, ValueError):
        # TVM raises the latter where offsets of idle lanes do not fit into 32 bits.
        return ()


def _find_asking(func: Any) -> list[str]:
    names: list[str] = []

    def look(block: Any) -> None:
        if COALESCE in block.annotations:
            names.append(block.name_hint)

    tvm_ffi.structural_walk(func.body, [(s_tir.SBlock, look)])
    return names


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.AutoCoalesce")
def _auto_coalesce(mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
    asking = {
        gv: names
        for gv, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc) and (names := _find_asking(func))
    }
    if not asking:
        return mod
    for gv, names in asking.items():
        for name in names:
            mod = _map(mod, gv.name_hint, name)
    return mod


def _map(mod: tvm.IRModule, func: str, name: str) -> tvm.IRModule:
    """Map a block that asks for it."""
    sch = s_tir.Schedule(mod, debug_mask="none")
    sch.work_on(func)
    block = sch.get_sblock(name, func)
    request = request_of(sch.get(block).annotations[COALESCE], name)
    sch.unannotate(block, COALESCE)
    _, way = _decide(sch, block, request)
    sch, block = way.run(sch, block)
    sch.annotate(block, DONE, way.path)
    return sch.mod


def AutoCoalesce() -> Any:
    """Create the pass that maps annotated blocks to threads.

    A block annotated ``layout_ext.auto_coalesce`` = ``[num_threads or 0, vector_bytes, stage]`` is
    treated as ``sch.auto_coalesce(block, ...)`` would treat it. Reads of one buffer at several
    places are parted where they are to be staged (:mod:`.split_reads`).

    Does not handle, and refuses by name: opaque blocks (with other statements than stores, atomics,
    ``if`` and ``let``), reductions under an ``if``, loops that are bound or vectorized already,
    indices with calls of unknown functions.

    Raises
    ------
    ScheduleError
        In these cases.
    """
    return _auto_coalesce
