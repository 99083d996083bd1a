"""Products whose rows are several dims, some symbolic: one variable counts the rows through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlockRealize

from ...ir.queries import (
    are_equal,
    distinct,
    is_among,
    is_number,
    loads_in,
    nodes_in,
    substitute,
    uses,
    variables,
)
from ...ir.rebuild import access_rules, block_with, loop_with, realize_with, sequence
from ...ir.walk import top_statements
from ...tune.space.functions import blocks_of
from ...tune.space.off_tensor_cores import is_product


@dataclass(frozen=True)
class MergedRows:
    """A function whose rows are counted by one variable, and the way back.

    Attributes
    ----------
    original : PrimFunc
    func : PrimFunc
        The same with buffers of ``rows x ...`` in the place of those of ``dims x ...``.
    rows : Var
    dims : sequence of PrimExpr
        Extents that were merged.
    """

    original: tirx.PrimFunc
    func: tirx.PrimFunc
    rows: Any
    dims: Sequence[Any]

    def restored(self, scheduled: tirx.PrimFunc) -> tirx.PrimFunc:
        """A schedule of :attr:`func` with the parameters of the original."""
        pairs = zip(scheduled.params, self.original.params, strict=True)
        own = {mine.__chandle__(): param for mine, param in pairs if not mine.same_as(param)}

        def change(buffer: Any, at: Sequence[Any]) -> tuple[Any, Sequence[Any]] | None:
            param = own.get(buffer.__chandle__())
            return None if param is None else (param, [*self._apart(at[0]), *at[1:]])

        def region(node: Any) -> Any:
            param = own.get(node.source.__chandle__())
            if param is None:
                return node
            # Who asks which elements of a parameter a block reads takes all of these rows.
            whole = [tvm.ir.Range(0, extent) for extent in self.dims]
            return tirx.BufferRegion(param, [*whole, *node.region[1:]])

        rules = [*access_rules(change), (tvm.ir.TensorRegion, region)]
        body = tvm_ffi.structural_map(scheduled.body, rules, order="post")
        # What is left of the parameters are their addresses.
        addressed = dict(zip(scheduled.params, self.original.params, strict=True))
        body = substitute(body, addressed | {self.rows: prod(self.dims)})
        return tirx.PrimFunc(
            self.original.params, body, scheduled.ret_type, attrs=self.original.attrs
        )

    def _apart(self, row: Any) -> list[Any]:
        """Indices of a row in the dims."""
        found = list[Any]()
        for extent in reversed(self.dims[1:]):
            found.insert(0, tirx.floormod(row, extent))
            row = tirx.floordiv(row, extent)
        return [row, *found]


def merge_rows(func: tirx.PrimFunc) -> MergedRows | None:
    """Count rows of products by one variable, if they are several dims, one of them symbolic.

    None where that is not so, or where something else depends on a place within these dims.
    """
    found = (_rows_of(block) for _, block in blocks_of(func) if is_product(block))
    dims = next((one for one in found if _is_worth(one)), None)
    if dims is None:
        return None
    symbolic = next(one for one in dims if not isinstance(one, tirx.IntImm))
    rows = tirx.Var("rows", str(symbolic.ty.dtype))
    merge = _Merge(dims, rows)
    params = [merge.buffer(param) if hasattr(param, "shape") else param for param in func.params]
    nests = [merge.nest(nest) for nest in top_statements(func)]
    if any(nest is None for nest in nests):
        return None
    root = func.body.block
    made = [merge.buffer(buffer) for buffer in root.alloc_buffers]
    root = block_with(root, body=sequence(nests), alloc_buffers=made)
    gone = [one for one in variables(tvm.runtime.convert(list(dims))) if not is_among(one, params)]
    if any(uses(root, one) for one in gone):
        return None
    merged = tirx.PrimFunc(params, realize_with(func.body, root), func.ret_type, attrs=func.attrs)
    return MergedRows(func, merged, rows, dims)


def _is_worth(dims: Sequence[Any]) -> bool:
    wide = [one for one in dims if not is_number(one, 1)]
    return len(wide) > 1 and not all(isinstance(one, tirx.IntImm) for one in wide)


def _rows_of(block: Any) -> list[Any]:
    """Extents of the leading iterators that a product's result shares with one factor alone."""
    out = block.body.indices
    factors = [
        one for one in loads_in(block.body.value) if not one.source.same_as(block.body.buffer)
    ]
    for first, other in (factors, reversed(factors)):
        shared = []
        for mine, own in zip(out, first.indices, strict=False):
            if not (isinstance(mine, tirx.Var) and mine.same_as(own)):
                break
            if any(uses(at, mine) for at in other.indices):
                break
            shared.append(mine)
        if shared:
            axes = {one.var.__chandle__(): one.dom.extent for one in block.iter_vars}
            return [axes[one.__chandle__()] for one in shared]
    return []


class _Merge:
    """Rewrites nests; buffers of rows are replaced, each by one."""

    def __init__(self, dims: Sequence[Any], rows: Any) -> None:
        self.dims, self.rows = dims, rows
        self.fresh: dict[int, Any] = {}

    def has_rows(self, buffer: Any) -> bool:
        """Whether a buffer's first dims are those of the rows."""
        count = len(self.dims)
        return len(buffer.shape) >= count and are_equal(buffer.shape[:count], self.dims)

    def buffer(self, old: Any) -> Any:
        """A buffer with one dim of rows, if the old one has several."""
        if not self.has_rows(old):
            return old
        if (key := old.__chandle__()) not in self.fresh:
            shape = [self.rows, *old.shape[len(self.dims) :]]
            self.fresh[key] = tirx.decl_buffer(
                shape, old.dtype, old.name, scope=str(old.scope()), layout=None
            )
        return self.fresh[key]

    def nest(self, nest: Any) -> Any | None:
        """Loops around a block with one loop over rows; None if the block needs the dims."""
        loops, realize = [], nest
        while isinstance(realize, tirx.For):
            loops.append(realize)
            realize = realize.body
        if not isinstance(realize, SBlockRealize):
            return None
        block = realize.block
        if (old := self._iterators(block)) is None:
            return None
        if not old:
            return nest
        row = tirx.Var("v_rows", str(self.rows.ty.dtype))
        merged = self._block(block, old, row)
        if any(uses(part, var) for part in (merged.body, merged.init) if part for var in old):
            return None
        pairs = zip(block.iter_vars, realize.iter_values, strict=True)
        given = {one.var.__chandle__(): value for one, value in pairs}
        values = [given.pop(var.__chandle__()) for var in old]
        if not all(is_among(value, [loop.loop_var for loop in loops]) for value in values):
            return None
        if any(uses(part, v) for part in (*given.values(), realize.predicate) for v in values):
            return None
        loop = tirx.Var("rows_i", str(self.rows.ty.dtype))
        others = [one for one in realize.iter_values if not is_among(one, values[1:])]
        kept = [loop if one.same_as(values[0]) else one for one in others]
        body: Any = SBlockRealize(kept, realize.predicate, merged)
        for around in reversed(loops):
            if around.loop_var.same_as(values[0]):
                body = loop_with(around, loop_var=loop, extent=self.rows, body=body)
            elif not is_among(around.loop_var, values):
                body = loop_with(around, body=body)
        return body

    def _iterators(self, block: Any) -> list[Any] | None:
        """Iterators by which a block counts rows; None if its accesses differ in them."""
        count, found = len(self.dims), list[list[Any]]()
        for part in (block.body, block.init):
            accesses = [] if part is None else nodes_in(part, tvm.ir.TensorLoad, tirx.BufferStore)
            for one in accesses:
                buffer = one.source if isinstance(one, tvm.ir.TensorLoad) else one.buffer
                if self.has_rows(buffer):
                    found.append(list(one.indices[:count]))
        if not found:
            return []
        own = [one.var for one in block.iter_vars if one.iter_type == tirx.IterVar.DataPar]
        is_plain = all(is_among(var, own) for var in found[0])
        is_same = all(
            all(a.same_as(b) for a, b in zip(one, found[0], strict=True)) for one in found
        )
        return found[0] if is_plain and is_same and len(distinct(found[0])) == count else None

    def _block(self, block: Any, old: Sequence[Any], row: Any) -> Any:
        count = len(old)

        def change(buffer: Any, at: Sequence[Any]) -> tuple[Any, Sequence[Any]] | None:
            return (self.buffer(buffer), [row, *at[count:]]) if self.has_rows(buffer) else None

        def region(node: Any) -> Any:
            if not self.has_rows(node.source):
                return node
            one = tvm.ir.Range.from_min_extent(row, 1)
            return tirx.BufferRegion(self.buffer(node.source), [one, *node.region[count:]])

        rules = access_rules(change)
        body, init = (
            part if part is None else tvm_ffi.structural_map(part, rules, order="post")
            for part in (block.body, block.init)
        )
        axis = tirx.IterVar(tvm.ir.Range(0, self.rows), row, tirx.IterVar.DataPar)
        axes = [
            axis if one.var.same_as(old[0]) else one
            for one in block.iter_vars
            if not is_among(one.var, old[1:])
        ]
        reads, writes = ([region(one) for one in side] for side in (block.reads, block.writes))
        return block_with(block, iter_vars=axes, body=body, init=init, reads=reads, writes=writes)
