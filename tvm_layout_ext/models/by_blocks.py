"""The rule for everything that only moves memory: elementwise blocks inlined, others coalesced."""

from __future__ import annotations

import tvm
from tvm import s_tir, tirx
from tvm.target import Target

from ..ir.tidy import without_unread
from ..schedules._generic import unbound
from .products import inlined, refuse_matrices
from .rule import Scheduled


def by_blocks(func: tirx.PrimFunc, target: Target) -> Scheduled:
    """Map each block to a kernel of its own; what can be inlined is first.

    What is computed element by element from a sum that a thread has joins its kernel.
    """
    del target  # The primitive asks for the one around.
    refuse_matrices(func)
    sch, _ = inlined(func)
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        if not sch.get_loops(block):
            sch.add_unit_loop(block)  # One element, which a thread of one block computes.
    told = []
    summed = {name for name in unbound(sch) if _sums(sch, name)}
    for name in (*sorted(summed), *sorted(unbound(sch) - summed)):
        if name not in summed and _joined(sch, name):
            told.append(f"{name} with its sum")
        else:
            told.append(f"{name} {sch.auto_coalesce(name).path}")
    left = without_unread(sch.mod["main"])
    if not left.same_as(sch.mod["main"]):
        sch = s_tir.Schedule(tvm.IRModule({"main": left}), debug_mask="none")
    return Scheduled(sch, "; ".join(told))


def _sums(sch: s_tir.Schedule, name: str) -> bool:
    iterators = sch.get(sch.get_sblock(name)).iter_vars
    return any(one.iter_type != tirx.IterVar.DataPar for one in iterators)


def _joined(sch: s_tir.Schedule, name: str) -> bool:
    """Inline a block into the copy of a thread's sums to memory, if it reads these alone."""
    try:
        sch.reverse_compute_inline(sch.get_sblock(name))
    except RuntimeError:
        return False
    return True
