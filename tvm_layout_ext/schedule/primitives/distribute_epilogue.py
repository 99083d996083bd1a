"""``sch.distribute_epilogue``: let each lane handle the sums that it holds."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ...errors import ScheduleError
from ...ir.block_bindings import iter_values
from ...ir.queries import loads_in, variables
from ..handles import find_block


def distribute_epilogue(sch: Any, block: Any) -> tuple[Any, Any]:
    """Spread what a warp does with its sums over its lanes, each its own part.

    The loops over rows and columns are split into tiles of 16 x 16, and those as the instruction
    leaves its sums: lane ``4 * (row % 8) + column % 8 // 2`` holds two neighbours of a row. The
    loops over tiles down and right are returned.

    Parameters
    ----------
    block : SBlockRV or str
        A block that reads the sums element by element, by loops that are free: ``result`` of
        :func:`.use_tensor_core.use_tensor_core`, moved to where a warp is done with its sums.
    """
    block = find_block(sch, block, "distribute_epilogue")
    down, right = _loops(sch, block)
    rows, row_half, row = sch.split(down, [None, 2, 8])
    columns, column_half, pair, two = sch.split(right, [None, 2, 4, 2])
    sch.reorder(rows, columns, row, pair, column_half, row_half, two)
    sch.bind(sch.fuse(row, pair), "threadIdx.x")
    for loop in (column_half, row_half):
        sch.unroll(loop)
    if _is_along_row(sch, block):
        sch.vectorize(two)
    else:
        sch.unroll(two)
    return rows, columns


def _sums(block: Any) -> Any:
    """The access of the sums: the only one to ``warp`` memory."""
    found = [load for load in loads_in(block.body) if load.source.scope() == "warp"]
    if not found or len(found[0].indices) < 2:
        raise ScheduleError(
            f"Block {block.name_hint} reads no sums of tensor cores; give "
            "distribute_epilogue the result of use_tensor_core."
        )
    return found[0]


def _loops(sch: Any, block: Any) -> tuple[Any, Any]:
    """Loops over rows and columns: the innermost ones that their iterators are bound to."""
    node = sch.get(block)
    sums = _sums(node)
    loops = sch.get_loops(block)
    found = []
    for index, what in zip(sums.indices[-2:], ("rows", "columns"), strict=True):
        loop = _innermost(sch, block, loops, variables(index))
        if loop is None:
            raise ScheduleError(
                f"Block {node.name_hint} has no free loop over the {what} of its sums; "
                "distribute_epilogue needs one, neither bound nor vectorized."
            )
        found.append(loop)
    return found[0], found[1]


def _innermost(sch: Any, block: Any, loops: Any, wanted: list[Any]) -> Any:
    values = [
        value
        for iterator, value in zip(sch.get(block).iter_vars, iter_values(sch, block), strict=True)
        if any(iterator.var.same_as(v) for v in wanted)
    ]
    for rv in reversed(loops):
        loop = sch.get(rv)
        used = [v for value in values for v in variables(value)]
        if int(loop.kind) == 0 and any(v.same_as(loop.loop_var) for v in used):
            return rv
    return None


def _is_along_row(sch: Any, block: Any) -> bool:
    """Whether neighbours of a row of sums are neighbours in what is written."""
    node = sch.get(block)
    column = variables(_sums(node).indices[-1])
    last = node.body.indices[-1]
    return isinstance(last, tirx.Var) and any(last.same_as(v) for v in column)
