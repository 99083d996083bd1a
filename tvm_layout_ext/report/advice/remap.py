"""Advice to leave the mapping of a kernel's threads to ``auto_coalesce``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tvm
from tvm import s_tir, tirx

from ...ir.queries import blocks_in
from ...ir.rebuild import block_with, sequence
from .trial import Advice, Attempt, Question, only_function

#: Share of the modelled time that has to go before everything else is undone.
_WORTH = 0.05


def advise(question: Question) -> Iterator[Advice]:
    """Map the kernel's only computation anew, if that is modelled to be faster."""
    name = ""

    def remapped(sch: Any) -> tvm.IRModule:
        nonlocal name
        plain, name = unscheduled(sch)
        plain.auto_coalesce(plain.get_sblock(name))
        return plain.mod

    trial = question.attempt(remapped)
    if trial is None or question.saved(trial) < _WORTH * question.now.seconds:
        return
    changed = ", ".join(
        f"{what} {before:,} to {after:,}"
        for (what, before), after in zip(
            _facts(question.now).items(), _facts(trial).values(), strict=True
        )
        if before != after
    )
    stage = question.stage(name)
    yield Advice(
        f"auto_coalesce, in place of all splits, binds and caches, takes {changed}",
        f"{stage}.auto_coalesce()" if question.is_te else f"sch.auto_coalesce({stage})",
        question.saved(trial),
    )


def _facts(trial: Attempt) -> dict[str, int]:
    return {
        "requests to global memory": trial.requests(),
        "sectors": sum(trial.grid(a.sectors, a.kernel) for a in trial.report.accesses),
        "bank conflicts": sum(
            trial.grid(a.bank_conflicts, a.kernel) for a in trial.report.accesses
        ),
        "blocks": sum(launch.blocks for launch in trial.report.launches),
    }


def unscheduled(sch: Any) -> tuple[s_tir.Schedule, str]:
    """The same computation with nothing done to it, copies inlined; and its only block's name.

    Raises
    ------
    ValueError
        If it has several blocks, or one that holds others.
    """
    _, func = only_function(sch.mod)
    realize = func.body
    blocks = [b for b in blocks_in(realize) if not b.same_as(realize.block)]
    if any(len(blocks_in(block.body)) for block in blocks):
        raise ValueError("A block holds others.")
    buffers = [b for block in (realize.block, *blocks) for b in block.alloc_buffers]
    body = sequence(_nest(block) for block in blocks)
    root = block_with(realize.block, body=body, alloc_buffers=buffers)
    plain = s_tir.Schedule(func.with_body(s_tir.SBlockRealize([], True, root)))
    sums = [number for number, block in enumerate(blocks) if block.init is not None]
    kept = sums[-1] if sums else len(blocks) - 1
    for block in blocks[:kept]:
        plain.compute_inline(plain.get_sblock(str(block.name_hint)))
    for block in reversed(blocks[kept + 1 :]):
        plain.reverse_compute_inline(plain.get_sblock(str(block.name_hint)))
    return plain, str(blocks[kept].name_hint)


def _nest(block: Any) -> Any:
    """A block under a loop for each of its iterators, without annotations."""
    loops = [tirx.Var(f"i{n}", "int32") for n, _ in enumerate(block.iter_vars)]
    stmt: Any = s_tir.SBlockRealize(
        loops, True, block_with(block, annotations={}, alloc_buffers=[])
    )
    for var, axis in reversed(list(zip(loops, block.iter_vars, strict=True))):
        stmt = tirx.For(var, 0, axis.dom.extent, tirx.ForKind.SERIAL, stmt)
    return stmt
