"""How the iterators of a scheduled block are bound to the loops around it."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm.s_tir import SBlockRealize

__all__ = ["guard", "iter_values"]


def iter_values(sch: Any, block: Any) -> list[Any]:
    """List what each iterator of a block is bound to, in the loop variables around it.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule.
    block : SBlockRV
        A block of it.
    """
    return list(_realize(sch, block).iter_values)


def guard(sch: Any, block: Any) -> Any:
    """Condition under which a block runs; true where it always does. Parameters as above."""
    return _realize(sch, block).predicate


def _realize(sch: Any, block: Any) -> SBlockRealize:
    node = sch.get(block)
    found: list[Any] = []

    def look(realize: Any) -> None:
        if realize.block.same_as(node):
            found.append(realize)

    loops = sch.get_loops(block)
    roots = [sch.get(loops[0])] if loops else [f.body for f in sch.mod.functions.values()]
    for root in roots:
        tvm_ffi.structural_walk(root, [(SBlockRealize, look)])
    return found[0]
