"""How the iterators of a scheduled block are bound to the loops around it."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir import SBlockRealize

from .queries import blocks_in, is_among, nodes_in


def holder_of(mod: Any, block: Any) -> tuple[str, Any] | None:
    """Name and function of a module that hold a block; None if none does."""
    for var, func in mod.functions.items():
        is_scheduled = isinstance(getattr(func, "body", None), SBlockRealize)
        if is_scheduled and is_among(block, blocks_in(func.body)):
            return str(var.name_hint), func
    return None


def realize_of(sch: Any, block: Any) -> SBlockRealize:
    """Find where a block of a schedule gets the values of its iterators."""
    node, loops = sch.get(block), sch.get_loops(block)
    functions = [func for func in sch.mod.functions.values() if isinstance(func, tirx.PrimFunc)]
    scopes = [sch.get(loops[-1]).body] if loops else [func.body for func in functions]
    all_found = (one for scope in scopes for one in nodes_in(scope, SBlockRealize))
    return next(one for one in all_found if one.block.same_as(node))


def iter_values(sch: Any, block: Any) -> list[Any]:
    """List what each iterator of a block is bound to, in the loop variables around it."""
    return list(realize_of(sch, block).iter_values)


def guard(sch: Any, block: Any) -> Any:
    """Condition under which a block runs; true where it always does."""
    return realize_of(sch, block).predicate
