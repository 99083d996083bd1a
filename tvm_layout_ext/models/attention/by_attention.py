"""The rule for attention: one kernel of warpgroups, where it can be one."""

from __future__ import annotations

import tvm
from tvm import s_tir, tirx
from tvm.target import Target

from ...analysis.attention import has_attention, read_attention
from ...errors import ScheduleError
from ...ir.annotations import MARK
from ...ir.walk import top_statements
from ...transform.attention.lower_attention import LowerAttention
from ..rule import Scheduled, few_or_many

#: Calls of up to so many rows have a kernel of their own, where rows are symbolic: blocks may share
#: the keys of so few.
_MOST_FEW = 128


def by_attention(func: tirx.PrimFunc, target: Target) -> Scheduled | None:
    """Schedule a function that is attention and nothing else; None where nothing is like it."""
    if not has_attention(func):
        return None
    attention = read_attention(func)
    if len(attention.places) < len(list(top_statements(func))):
        raise ScheduleError(f"Block {attention.name} is not all that its function computes.")
    rows, (many, numbers) = attention.sizes[0], _scheduled(func, attention.name)
    if isinstance(rows, int):
        return many
    few, others = _scheduled(func, attention.name, _MOST_FEW)
    if numbers[:-1] == others[:-1]:
        return many
    return few_or_many(rows, _MOST_FEW, _lowered(few, target), _lowered(many, target))


def _scheduled(func: tirx.PrimFunc, name: str, most_rows: int = 0) -> tuple[Scheduled, list[int]]:
    """One kernel, and the numbers of its plan."""
    sch = s_tir.Schedule(func)
    plan = sch.fuse_attention(name, most_rows=most_rows)
    made = Scheduled(sch, f"{name} and all before it in one kernel: {plan.told()}")
    return made, plan.numbers()


def _lowered(one: Scheduled, target: Target) -> Scheduled:
    """The same with its kernel, which is found among a function's own statements alone."""
    with target:
        mod = LowerAttention()(tvm.IRModule({"main": one.function.with_attr(MARK, 1)}))
    return Scheduled.of(mod["main"], one.text)
