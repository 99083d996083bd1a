"""The rule for everything that only moves memory: elementwise blocks inlined, others coalesced."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.target import Target

from ..schedules._generic import inline, unbound
from .matrices import refuse_matrices
from .rule import Scheduled


def by_blocks(func: tirx.PrimFunc, target: Target) -> Scheduled:
    """Map each block to a kernel of its own; what can be inlined is first."""
    del target  # The primitive asks for the one around.
    refuse_matrices(func)
    sch = s_tir.Schedule(func)
    inline(sch)
    told = [f"{name} {sch.auto_coalesce(name).path}" for name in sorted(unbound(sch))]
    return Scheduled(sch, "; ".join(told))
