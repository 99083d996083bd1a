"""Find what a schedule makes of a program that TVM's first passes get wrong, before they do."""

from __future__ import annotations

import re
from typing import Any

import tvm
from tvm import s_tir, tirx

from ... import pipeline
from ..._compat import pass_name
from ...errors import ScheduleError
from ...ir.conditions import conjuncts
from ...ir.queries import blocks_in, nodes_in, thread_tag
from ...transform.mark_annotated import is_annotated
from .records import is_reduction

#: The last of TVM's passes that fails, or goes wrong, on what a schedule does.
_COMPACTION = "s_tir.CompactBufferAllocation"
_UNBOUNDED = 2**31 - 1


def check_lowerable(mod: tvm.IRModule) -> None:
    """Refuse a program whose on-chip buffers or reductions TVM 0.27 cannot lower.

    A guard such as ``i * 32 + j < n`` may cost a tile its bound; programs without one are not
    tried.
    """
    func = mod["main"]
    # GuardReductions mends them in functions that carry our annotations, and only there.
    if not is_annotated(func):
        _check_reductions(func)
    if not (_is_guarded(func) or any(map(_is_symbolic, func.params))):
        return
    for compiler_pass in pipeline.lowering_passes()[0]:
        mod = _run(compiler_pass, mod)
        if pass_name(compiler_pass) == _COMPACTION:
            break
    for block in blocks_in(mod["main"].body):
        _check_sizes(block)
    _check_variables(mod["main"])


def _check_reductions(func: tirx.PrimFunc) -> None:
    """Refuse a guarded result of an unguarded reduction over threads: TVM drops the guard."""
    loops = nodes_in(func.body, tirx.For)
    threads = {loop.loop_var: tag for loop in loops if (tag := thread_tag(loop))}
    for realize in nodes_in(func.body, s_tir.SBlockRealize):
        _check_guard(realize, threads)


def _check_guard(realize: s_tir.SBlockRealize, threads: dict[tirx.Var, str]) -> None:
    data: set[tirx.Var] = set()
    summed: set[tirx.Var] = set()
    for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
        (summed if is_reduction(axis) else data).update(_variables(value))
    tags = [tag for var, tag in threads.items() if var in summed]
    used = [(part, set(_variables(part))) for part in conjuncts(realize.predicate)]
    guards = [part for part, variables in used if data & variables]
    if tags and guards and not any(summed & variables for _, variables in used):
        raise ScheduleError(
            f"Stage {realize.block.name_hint} reduces over {tags[0]} under the guard {guards[0]}, "
            f"which TVM loses when it stores the result; split the data axes of the stage, and of "
            f"the one it is computed at, by divisors of their extents."
        )


def _run(compiler_pass: Any, mod: tvm.IRModule) -> tvm.IRModule:
    try:
        return compiler_pass(mod)
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ScheduleError(
            f"TVM's pass {pass_name(compiler_pass)} refuses the schedule: {reason.rstrip('.')}."
        ) from error


def _is_guarded(func: tirx.PrimFunc) -> bool:
    """Whether a block runs under a condition, be it a guard or that of its initialisation."""
    return any(
        not isinstance(one.predicate, tirx.IntImm) or one.block.init is not None
        for one in nodes_in(func.body, s_tir.SBlockRealize)
    )


def _is_symbolic(param: Any) -> bool:
    return hasattr(param, "shape") and not all(isinstance(e, tirx.IntImm) for e in param.shape)


def _check_sizes(block: s_tir.SBlock) -> None:
    for buffer in block.alloc_buffers:
        sizes = [int(e) if isinstance(e, tirx.IntImm) else _UNBOUNDED for e in buffer.shape]
        if buffer.scope() != "global" and max(sizes, default=1) >= _UNBOUNDED:
            raise ScheduleError(
                f"TensorIR cannot bound the tile of {buffer.name} in {buffer.scope()} memory, "
                f"because a symbolic extent cuts it; declare that as a multiple of the tile "
                f"(n * 32), or compute the stage inside one thread's loops."
            )


def _check_variables(func: tirx.PrimFunc) -> None:
    shapes = {var for p in func.params for e in getattr(p, "shape", ()) for var in _variables(e)}
    try:
        used = _variables(func.body)
    except RuntimeError as error:
        # TVM's analysis fails on a variable that is used before the loop that defines it.
        early = re.search(r"variable (\S+) has been used before", str(error))
        if early is None:
            raise
        raise _unbounded(early[1]) from error
    loose = [v.name for v in used if v not in shapes and v not in func.params]
    if loose:
        raise _unbounded(loose[0])


def _unbounded(loop: str) -> ScheduleError:
    return ScheduleError(
        f"TensorIR cannot bound an on-chip tile, because the split that makes loop {loop} does not "
        f"divide its extent; split by a divisor, or attach further out."
    )


def _variables(node: Any) -> list[Any]:
    return list(tirx.analysis.undefined_vars(node, []))
