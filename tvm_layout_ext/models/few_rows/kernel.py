"""What kernels of products of few rows share: threads, values of iterators, results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from ...coalesce.rows.traffic import unravel
from ...gpu.hardware import WARP_SIZE
from ...ir.queries import distinct, is_among, is_load_of, loads_in, substitute
from ...ir.rebuild import block_with, realize_with, sequence, whole_region
from .product import RowsProduct


def unrolled(extent: int, body: Callable[[Any], Any], kind: Any = tirx.ForKind.UNROLLED) -> Any:
    """Write a loop."""
    var = tirx.Var("i", "int32")
    return tirx.For(var, 0, extent, kind, body(var))


class RowsKernel:
    """A kernel of some warps a block, in place of all that a function computes."""

    warps: int
    blocks: int
    #: Buffers of its own: registers, and shared memory.
    kept: list[Any]

    def __init__(self, product: RowsProduct) -> None:
        self.product = product
        iterators = product.block.iter_vars
        self.terms, self.width = (int(iterators[i].dom.extent) for i in (product.k, product.n))
        self.lane, self.warp, self.grid = (
            tirx.Var(name, "int32") for name in ("lane", "warp", "block")
        )

    def body(self) -> Iterator[Any]:
        """What a warp does."""
        raise NotImplementedError

    def registers(self, name: str, dtype: str, *shape: int) -> Any:
        """A buffer of each thread."""
        return tirx.decl_buffer(shape, dtype, name, scope="local", layout=None)

    def function(self) -> tirx.PrimFunc:
        """The function with this kernel as its body."""
        func, product = self.product.func, self.product
        weights = [one.weight for one in product.members]
        values = (*weights, product.x, *(one.body.value for one in product.after))
        loads = [load for value in values for load in loads_in(value)]
        made = [one.block.body.buffer for one in product.members]
        read = distinct(one.source for one in loads if not is_among(one.source, made))
        stores = [one.body.buffer for one in product.after or (product.block,)]
        regions = [[whole_region(one) for one in some] for some in (read, stores)]
        block = s_tir.SBlock(
            [], *regions, product.block.name_hint, sequence(list(self.body())), None, self.kept
        )
        stmt: Any = s_tir.SBlockRealize([], tirx.const(True, "bool"), block)
        for var, extent, tag in (
            (self.lane, WARP_SIZE, "threadIdx.x"),
            (self.warp, self.warps, "threadIdx.y"),
            (self.grid, self.blocks, "blockIdx.x"),
        ):
            thread = tirx.IterVar(None, tirx.Var("", "int32"), tirx.IterVar.ThreadIndex, tag)
            stmt = tirx.For(var, 0, extent, tirx.ForKind.THREAD_BINDING, stmt, thread)
        root = block_with(func.body.block, body=stmt, alloc_buffers=[])
        return func.with_body(realize_with(func.body, root))

    def values(
        self, column: Any, term: Any, row: Any, member: RowsProduct | None = None
    ) -> dict[Any, Any]:
        """Values of the iterators of the product, or of one of several."""
        product = member or self.product
        values = {one.var: tirx.const(0, "int64") for one in product.block.iter_vars}
        extents = [product.what.extents[i] for i in product.rows]
        for at, value in zip(product.rows, unravel(row, extents), strict=True):
            values[product.block.iter_vars[at].var] = value
        values[product.block.iter_vars[product.n].var] = column
        values[product.block.iter_vars[product.k].var] = term
        return values

    def stored(self, column: Any, row: Any, *own: Any) -> Any:
        """Store what becomes of a sum, or of those of all members."""
        product, block = self.product, self.product.block
        values = self.values(column, tirx.const(0, "int64"), row)
        buffers = [one.block.body.buffer for one in product.members]
        sums = [
            (buffer, one.astype(str(buffer.dtype)))
            for buffer, one in zip(buffers, own, strict=True)
        ]

        def known(load: Any) -> Any:
            return next((one for buffer, one in sums if is_load_of(load, buffer)), load)

        made = [substitute(at, values) for at in block.body.indices]
        done = []
        for one in product.after:
            at = dict(zip((x.var for x in one.iter_vars), made, strict=True))
            swap = (tvm.ir.TensorLoad, known)
            value = substitute(tvm_ffi.structural_map(one.body.value, [swap], order="post"), at)
            indices = [substitute(i, at) for i in one.body.indices]
            done.append(tirx.BufferStore(one.body.buffer, value, indices))
        if not product.after:
            done = [tirx.BufferStore(*sums[0], made)]
        return sequence(done)
