"""The rule for everything that only moves memory: elementwise blocks inlined, others coalesced."""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx
from tvm.target import Target

from ..analysis.contraction import read_contraction
from ..errors import ScheduleError
from ..schedules._generic import inline, unbound
from ..tune.space.functions import blocks_of
from ..tune.space.off_tensor_cores import is_product
from .rule import Scheduled


def by_blocks(func: tirx.PrimFunc, target: Target) -> Scheduled:
    """Map each block to a kernel of its own; what can be inlined is first.

    ScheduleError for a product of several rows and columns: as a sum it would read each element of
    an operand once for each row, or column, of the other.
    """
    del target  # The primitive asks for the one around.
    for _, block in blocks_of(func):
        if is_product(block):
            _check_vector(block)
    sch = s_tir.Schedule(func)
    inline(sch)
    told = [f"{name} {sch.auto_coalesce(name).path}" for name in sorted(unbound(sch))]
    return Scheduled(sch, "; ".join(told))


def _check_vector(block: Any) -> None:
    """Raise ScheduleError unless a product has a single row or column."""
    m, n, _ = read_contraction(block).sizes
    if min(m, n) > 1:
        raise ScheduleError(
            f"Block {block.name_hint} multiplies {m} rows by {n} columns; coalesced as a sum it "
            "would read its operands again and again."
        )
