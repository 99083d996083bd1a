"""Map the iterations of a block to threads so that its memory requests are full and wide."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tvm
from tvm import s_tir, tirx

from .. import decisions
from ..analysis.nest import read_nest
from ..coalesce.checks import check, check_place
from ..coalesce.choose import Outcome, choose
from ..coalesce.independence import check_updates, updated_in_place
from ..coalesce.isolate import Isolated, isolate
from ..coalesce.request import NAME, Request, request_of
from ..coalesce.strategy import Strategy
from ..coalesce.subject import Subject
from ..ir.annotations import COALESCE, DONE
from ..ir.queries import blocks_in


def coalesce(sch: Any, block: Any, request: Request) -> Outcome:
    """Re-map a block of a schedule; everything done to it is traced. Else ScheduleError.

    Where no traced primitive does what is needed, the block is only marked, and the pass maps it
    when the program is lowered: where it updates a buffer in place, or is to be staged or reduced
    in a program of its own (:mod:`..coalesce.isolate`).
    """
    outcome, way, isolated = _decide(sch, block, request)
    if COALESCE in sch.get(block).annotations:
        sch.unannotate(block, COALESCE)
    if isolated is not None:
        sch.annotate(block, COALESCE, request.as_annotation())
        return replace(outcome, text=f"when the program is lowered, {outcome.text}")
    way.apply(sch, block)
    sch.annotate(block, DONE, way.path)
    return outcome


def _decide(sch: Any, block: Any, request: Request) -> tuple[Outcome, Strategy, Isolated | None]:
    """Choose for a block: what is done, how, and in which program, if not its own."""
    check_place(sch, block)
    nest = read_nest(sch, block)
    check(nest)
    check_updates(nest)
    if updated_in_place(nest):
        found = isolate(sch, nest)
        subject = Subject.of(found.sch, found.block, request, found)
    else:
        subject = Subject.of(sch, block, request, nest=nest)
    outcome, way = choose(subject)
    decisions.note(NAME, str(nest.block.name_hint), outcome.report)
    return outcome, way, way.isolated or subject.isolated


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.AutoCoalesce")
def _auto_coalesce(mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
    asking = [
        (gv.name_hint, one.name_hint)
        for gv, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc)
        for one in blocks_in(func.body)
        if COALESCE in one.annotations
    ]
    for function, block in asking:
        mod = _map(mod, function, block)
    return mod


def _map(mod: tvm.IRModule, func: str, name: str) -> tvm.IRModule:
    sch = s_tir.Schedule(mod, debug_mask="none")
    sch.work_on(func)
    block = sch.get_sblock(name, func)
    request = request_of(sch.get(block).annotations[COALESCE], name)
    sch.unannotate(block, COALESCE)
    _, way, isolated = _decide(sch, block, request)
    if isolated is not None:
        way.apply(isolated.sch, isolated.block)
        sch, block = isolated.restore(isolated.sch, isolated.block)
    else:
        way.apply(sch, block)
    sch.annotate(block, DONE, way.path)
    return sch.mod


def AutoCoalesce() -> Any:
    """Create the pass that maps annotated blocks to threads.

    A block annotated ``layout_ext.auto_coalesce`` = ``[num_threads or 0, vector_bytes, stage]`` is
    treated as ``sch.auto_coalesce(block, ...)`` would treat it. What needs a program of its own is
    mapped in one (:mod:`..coalesce.isolate`).

    Does not handle, and refuses by name: opaque blocks (with other statements than stores, atomics,
    ``if`` and ``let``), reductions under an ``if``, loops that are bound or vectorized already,
    indices with calls of unknown functions.
    """
    return _auto_coalesce
