"""A few rows of an output stand for all of it where all would take a CPU longer than a second.

Rows are positions along one axis of the output. Of each block that this output needs only there,
the loop of that axis leaves the others out; blocks whose results all rows need run wholly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm_ffi
from tvm import tirx

from ....ir.queries import loads_in, nodes_in, uses
from ....ir.rebuild import loop_with

#: Iterations of blocks that a CPU makes in half a second.
MOST = 1 << 28
#: Rows at least, however long each takes.
_FEWEST = 4


@dataclass(frozen=True, eq=False)
class Rows:
    """Positions along an axis of the output; ``loops`` has each block's variable or None."""

    axis: int
    chosen: np.ndarray
    loops: tuple[Any, ...]


def choose_rows(blocks: Sequence[Any], output: Any, most: int) -> Rows | None:
    """Choose the axis along which rows leave most work out; None if ``most`` iterations do all."""
    work = [math.prod(int(one.dom.extent) for one in node.block.iter_vars) for node in blocks]
    if sum(work) <= most:
        return None
    best: tuple[int, Rows] | None = None
    for axis, extent in enumerate(map(int, output.shape)):
        loops = _loops_along(blocks, output, axis)
        along = sum(one for one, loop in zip(work, loops, strict=True) if loop is not None)
        fixed, row = sum(work) - along, max(1, along // extent)
        count = max(_FEWEST, (most - fixed) // row)
        if along and count < extent and (best is None or fixed + count * row < best[0]):
            best = fixed + count * row, Rows(axis, _spread(extent, count), loops)
    return None if best is None else best[1]


def _spread(extent: int, count: int) -> np.ndarray:
    inner = np.random.default_rng(0).choice(extent - 2, count - 2, replace=False) + 1
    return np.sort(np.concatenate([[0, extent - 1], inner]))


def _loops_along(blocks: Sequence[Any], output: Any, axis: int) -> tuple[Any, ...]:
    """The loop of each block that runs along an axis of the output, if nobody needs more of it."""
    #: By buffer the axis of which only rows are needed; None if all of it is.
    needed: dict[Any, int | None] = {output.__chandle__(): axis}
    writers = [_written(node) for node in blocks]
    loops: list[Any] = []
    for node in reversed(blocks):
        written = _written(node)
        axis_here = needed.get(written) if writers.count(written) == 1 else None
        row = None if axis_here is None else _iterator_along(node, axis_here)
        loops.append(None if row is None else node.iter_values[row])
        for load in loads_in(node.block):
            source = load.source.__chandle__()
            if source != written:
                at = None if row is None else _axis_of(load, node.block.iter_vars[row].var)
                needed[source] = at if needed.get(source, at) == at else None
    return tuple(reversed(loops))


def _written(node: Any) -> Any:
    stores = stores_in(node.block)
    return stores[0].buffer.__chandle__() if stores else None


def _iterator_along(node: Any, axis: int) -> int | None:
    """Which iterator of a block, a loop's own, is the index of an axis in all its stores."""
    stores = stores_in(node.block)
    for position, iterator in enumerate(node.block.iter_vars):
        spatial = iterator.iter_type == tirx.IterVar.DataPar
        own = spatial and isinstance(node.iter_values[position], tirx.Var)
        if own and all(_axis_of(one, iterator.var) == axis for one in stores):
            return position
    return None


def _axis_of(access: Any, var: Any) -> int | None:
    """The index that a variable is by itself; None if it is none, or in another one, too."""
    found = [i for i, index in enumerate(access.indices) if uses(index, var)]
    return found[0] if len(found) == 1 and access.indices[found[0]].same_as(var) else None


def stores_in(block: Any) -> list[Any]:
    """Stores of a block, without that of its initial value."""
    return nodes_in(block.body, tirx.BufferStore)


def guarded(func: tirx.PrimFunc, loops: Sequence[Any], extent: int) -> tirx.PrimFunc:
    """Let loops leave out the rows that a first argument, a byte a row, has as 0."""
    mask = tirx.decl_buffer((extent,), "int8", name="wanted_rows")
    inside = {var.__chandle__() for var in loops}

    def guard(loop: Any) -> Any:
        if loop.loop_var.__chandle__() not in inside:
            return loop
        wanted = mask[loop.loop_var] != tirx.IntImm("int8", 0)
        return loop_with(loop, body=tirx.IfThenElse(wanted, loop.body, None))

    body = tvm_ffi.structural_map(func.body, [(tirx.For, guard)], order="post")
    made = tirx.PrimFunc([mask, *func.params], body, func.ret_type)
    return made.with_attr({key: func.attrs[key] for key in func.attrs.keys()})  # noqa: SIM118
