"""Store whole vectors where a ragged row of shared memory ends in padding."""

from __future__ import annotations

from functools import reduce
from typing import Any

from tvm import tirx
from tvm.s_tir import SBlockRealize

from ...ir.conditions import conjuncts, ranges_known, step_of
from ...ir.queries import depends_on, loads_in, substitute
from ...ir.rebuild import loop_with
from ..base import function_pass, mapped, vector_loops


def _room(buffer: Any) -> int:
    """Elements from the begin of a row of shared memory that are nobody else's; 0 if unknown."""
    strides = list(buffer.ty.strides)
    if not buffer.scope().startswith("shared") or len(strides) < 2 or len(buffer.shape) < 2:
        return 0
    known = all(isinstance(s, tirx.IntImm) for s in (*strides[-2:], buffer.shape[-1]))
    if not known or int(strides[-1]) != 1:
        return 0
    return max(0, int(strides[-2]))


def _stays_inside(value: Any, analyzer: Any) -> bool:
    """Whether every load of a value is of registers, and in bounds for all loops and threads."""
    return all(
        load.source.scope() in ("local", "warp")
        and analyzer.can_prove(tirx.And(index >= 0, index < extent))
        for load in loads_in(value)
        for index, extent in zip(load.indices, load.source.shape, strict=True)
    )


def _filled(loop: Any, analyzer: Any) -> Any:
    realize = loop.body
    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(realize, SBlockRealize):
        return loop
    store = realize.block.body
    if not isinstance(store, tirx.BufferStore) or not isinstance(loop.extent, tirx.IntImm):
        return loop
    lanes, room, column = int(loop.extent), _room(store.buffer), store.indices[-1]
    if not room or any(depends_on(index, loop.loop_var) for index in store.indices[:-1]):
        return loop
    columns = int(store.buffer.shape[-1])
    first = substitute(column, {loop.loop_var: loop.extent * 0})
    start = analyzer.modular_set(first)
    # Vectors that begin inside the row and at multiples of their lanes end before this.
    if -(-columns // lanes) * lanes > room or start.coeff % lanes or start.base % lanes:
        return loop
    ends = [part for part in conjuncts(realize.predicate) if depends_on(part, loop.loop_var)]
    if len(ends) != 1 or not _is_end(ends[0], column, columns, loop.loop_var, analyzer):
        return loop
    if not _stays_inside(store.value, analyzer):
        return loop
    rest = [part for part in conjuncts(realize.predicate) if not depends_on(part, loop.loop_var)]
    predicate = reduce(tirx.And, [*rest, analyzer.simplify(first < columns)])
    return loop_with(loop, body=SBlockRealize(realize.iter_values, predicate, realize.block))


def _is_end(condition: Any, column: Any, columns: int, var: Any, analyzer: Any) -> bool:
    """Whether a condition says that the column is inside the row, and columns follow lanes."""
    if not isinstance(condition, tirx.LT):
        return False
    same = analyzer.can_prove_equal(condition.a - condition.b, column - columns)
    return bool(same) and step_of(column, var, analyzer) == 1


@function_pass()
def FillPaddedRows(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that stores the last vector of a ragged row whole, into the row's padding.

    Rows of a shared buffer that ``storage_align`` spreads end in elements that nobody reads. A
    vector of registers that reaches over the end of such a row may go there, which keeps it one
    instruction; element by element it would meet banks twice::

        # before: rows of 7, 40 apart               # after
        for v in T.vectorized(2):                   for v in T.vectorized(2):
            if c * 2 + v < 7:                           if c < 4:
                S[i, c * 2 + v] = R[c * 2 + v]              S[i, c * 2 + v] = R[c * 2 + v]

    Leaves alone: rows without room for the vector, rows or strides of symbolic length, vectors that
    do not start at multiples of their length, values that load anything but registers or that may
    leave these, further conditions on the vector's variable, functions without an annotation of
    this package.
    """
    if not any(isinstance(loop.body, SBlockRealize) for loop in vector_loops(func)):
        return func
    analyzer = ranges_known(func.body)
    return mapped(func, (tirx.For, lambda loop: _filled(loop, analyzer)))
