"""The rule for attention: one kernel of warpgroups, where it can be one."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.target import Target

from ...analysis.attention import has_attention, read_attention
from ...errors import ScheduleError
from ...ir.walk import top_statements
from ..rule import Scheduled


def by_attention(func: tirx.PrimFunc, target: Target) -> Scheduled | None:
    """Schedule a function that is attention and nothing else; None where nothing is like it."""
    del target  # The primitive asks for the one around.
    if not has_attention(func):
        return None
    attention = read_attention(func)
    if len(attention.places) < len(list(top_statements(func))):
        raise ScheduleError(f"Block {attention.name} is not all that its function computes.")
    sch = s_tir.Schedule(func)
    plan = sch.fuse_attention(attention.name)
    return Scheduled(sch, f"{attention.name} and all before it in one kernel: {plan.told()}")
