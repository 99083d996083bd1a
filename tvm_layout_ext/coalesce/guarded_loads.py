"""Loads that a block does under a condition only, and that would leave their buffer without it."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ..analysis.nest import Nest
from ..ir.block_body import without_lets
from ..ir.conditions import analyzer_of, conjuncts, loads_with_conditions, selects_as_choices
from ..ir.ops import CHOICE
from ..ir.queries import are_equal, loads_in


def guarded_outside(nest: Nest) -> list[str]:
    """Find buffers that only a condition keeps a block from reading outside of their shapes.

    A copy of what the block reads, as a shared tile is one, knows of no such condition.

    Examples
    --------
    >>> from tvm import s_tir, te
    >>> a = te.placeholder((8, 8), name="A")
    >>> b = te.compute((8, 8), lambda i, j: tvm.tirx.if_then_else(i > 0, a[j, i - 1], 0.0), "B")
    >>> sch = s_tir.Schedule(te.create_prim_func([a, b]))
    >>> from tvm_layout_ext.analysis.nest import read_nest
    >>> guarded_outside(read_nest(sch, sch.get_sblock("B")))
    ['A']
    """
    axes = [(axis.var, axis.dom) for axis in nest.block.iter_vars]
    analyzer = analyzer_of([*axes, *((loop.var, loop.extent) for loop in nest.loops)])
    found: dict[str, None] = {}
    body = without_lets(nest.block.body)
    guarded, every = _guarded(body), loads_in(body)
    for load in guarded:
        # An argmax compares an element, and only of equals looks at it again: that is no guard.
        is_read_anyway = _count(load, every) > _count(load, guarded)
        if is_read_anyway or load.source.scope() not in ("", "global"):
            continue
        if not _is_inside(load, nest, analyzer):
            found[str(load.source.name)] = None
    return list(found)


def _is_inside(load: Any, nest: Nest, analyzer: Any) -> bool:
    """Whether a block that runs reads a buffer inside of its shape; its predicate holds then."""
    ways = [load.indices]
    for access in nest.accesses:
        if access.buffer.same_as(load.source) and are_equal(access.own_indices, load.indices):
            ways.append(access.indices)
    bounds = [one for one in conjuncts(nest.predicate) if isinstance(one, tirx.LT)]

    def is_below(index: Any, extent: Any) -> bool:
        return analyzer.can_prove(index < extent) or any(
            analyzer.can_prove(index - bound.a <= extent - bound.b) for bound in bounds
        )

    return any(
        all(
            analyzer.can_prove(index >= 0) and is_below(index, extent)
            for index, extent in zip(indices, load.source.shape, strict=True)
        )
        for indices in ways
    )


def _count(load: Any, loads: list[Any]) -> int:
    return sum(tvm_ffi.structural_equal(load, other) for other in loads)


def chosen_by_index(body: Any) -> set[str]:
    """Name the buffers that a body loads in a choice by indices: not in every iteration, perhaps.

    Examples
    --------
    >>> i = tirx.Var("i", "int32")
    >>> b = tirx.decl_buffer((8,), "float32", "B", layout=None)
    >>> chosen_by_index(tirx.Evaluate(tirx.if_then_else(i < 3, b[i], 0.0)))
    {'B'}
    """
    found: set[str] = set()

    def look(call: Any) -> None:
        if getattr(call.op, "name", "") == CHOICE and not loads_in(call.args[0]):
            for part in call.args[1:]:
                found.update(str(load.source.name) for load in loads_in(part))

    tvm_ffi.structural_walk(selects_as_choices(body), [(tvm.ir.Call, look)])
    return found


def _guarded(body: Any) -> list[Any]:
    """Loads that are not always done, each as often as there are conditions around it."""
    return [load for load, held in loads_with_conditions(body) for _ in held]
