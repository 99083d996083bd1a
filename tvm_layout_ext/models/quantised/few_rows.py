"""The rule for few rows by packed weights: each weight is read once, 16 bytes of a lane at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import gcd
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.target import Target

from ...coalesce.rows.emit import of_lane
from ...coalesce.rows.traffic import unravel
from ...gpu.hardware import MAX_ACCESS_BYTES, MULTIPROCESSORS, WARP_SIZE
from ...ir.queries import distinct, is_load_of, loads_in, substitute
from ...ir.rebuild import block_with, realize_with, sequence, whole_region
from ..rule import Scheduled
from .unpacked import UnpackedProduct, read_unpacked

#: Rows that share a weight in registers; with more, tensor cores are faster.
MOST_ROWS = 8
#: Warps of a block; columns of a warp that share what it reads of a row; vectors of packed weights
#: that a lane loads together; warps of a multiprocessor below which columns go to more warps.
_WARPS, _COLUMNS, _TOGETHER, _BUSY = 4, (4, 2, 1), 4, 12


def few_rows(func: tirx.PrimFunc, target: Target) -> Scheduled | None:
    """Write a kernel of a product of up to :data:`MOST_ROWS` rows by weights that are packed.

    A warp has some columns. Its lanes share out the terms, and what they have is summed up by
    shuffles. None where nothing is unpacked, or there are more rows.
    """
    del target  # The kernel suits all.
    product = read_unpacked(func)
    if product is None:
        return None
    if product.count > MOST_ROWS:
        return None
    kernel = _FewRows(product)
    sch = s_tir.Schedule(tvm.IRModule({"main": kernel.function()}), debug_mask="none")
    return Scheduled(sch, f"{product.block.name_hint} by packed weights, {kernel.text()}")


def _for(extent: int, body: Callable[[Any], Any], kind: Any = tirx.ForKind.UNROLLED) -> Any:
    var = tirx.Var("i", "int32")
    return tirx.For(var, 0, extent, kind, body(var))


class _FewRows:
    def __init__(self, product: UnpackedProduct) -> None:
        self.product = product
        packed, iterators = product.packed, product.block.iter_vars
        self.terms, self.width = (int(iterators[i].dom.extent) for i in (product.k, product.n))
        size = tvm.DataType(str(packed.dtype)).itemsize
        self.words = gcd(MAX_ACCESS_BYTES // size, int(packed.shape[-1]))
        self.vector = self.words * product.each
        self.part = gcd(self.vector, self._neighbours())
        self.groups = self.terms // self.vector
        enough = MULTIPROCESSORS * _BUSY
        self.columns = next(n for n in _COLUMNS if n == 1 or self.width >= n * enough)
        self.steps = -(-self.groups // WARP_SIZE)
        self.together = next(
            n for n in (4, 2, 1) if n * self.columns <= _TOGETHER and self.steps % n == 0
        )
        self.lane, self.warp, self.grid = (
            tirx.Var(name, "int32") for name in ("lane", "warp", "block")
        )
        self.sums = self._new("sums", "float32", self.columns, product.count)
        shape = self.together, self.columns, self.words
        self.held = self._new("packed", str(packed.dtype), *shape)
        self.row = self._new("row", str(product.x.source.dtype), product.count, self.part)
        self.partial = self._new("partial", "float32", self.columns, product.count)

    def _neighbours(self) -> int:
        """Elements of a row of ``x`` that 16 bytes have, or 1 where they do not lie together."""
        x, k = self.product.x, self.product.block.iter_vars[self.product.k].var
        size = tvm.DataType(str(x.source.dtype)).itemsize
        return MAX_ACCESS_BYTES // size if x.indices[-1].same_as(k) else 1

    def text(self) -> str:
        """Tell it in a clause."""
        return f"{self.words} of {self.product.packed.dtype} a lane, {self.columns} columns a warp"

    def _new(self, name: str, dtype: str, *shape: int) -> Any:
        return tirx.decl_buffer(shape, dtype, name, scope="local", layout=None)

    def function(self) -> tirx.PrimFunc:
        """The function with this kernel as its body."""
        func, product = self.product.func, self.product
        values = (product.weight, product.x, *(one.body.value for one in product.after))
        loads = [load for value in values for load in loads_in(value)]
        made = product.block.body.buffer
        read = distinct(one.source for one in loads if not one.source.same_as(made))
        stores = [one.body.buffer for one in product.after or (product.block,)]
        registers = [self.sums, self.held, self.row, self.partial]
        regions = [[whole_region(one) for one in some] for some in (read, stores)]
        block = s_tir.SBlock(
            [], *regions, product.block.name_hint, sequence(list(self._body())), None, registers
        )
        stmt: Any = s_tir.SBlockRealize([], tirx.const(True, "bool"), block)
        blocks = -(-self.width // (_WARPS * self.columns))
        for var, extent, tag in (
            (self.lane, WARP_SIZE, "threadIdx.x"),
            (self.warp, _WARPS, "threadIdx.y"),
            (self.grid, blocks, "blockIdx.x"),
        ):
            thread = tirx.IterVar(None, tirx.Var("", "int32"), tirx.IterVar.ThreadIndex, tag)
            stmt = tirx.For(var, 0, extent, tirx.ForKind.THREAD_BINDING, stmt, thread)
        root = block_with(func.body.block, body=stmt, alloc_buffers=[])
        return func.with_body(realize_with(func.body, root))

    def _column(self, c: Any) -> Any:
        return ((self.grid * _WARPS + self.warp) * self.columns + c).astype("int64")

    def _values(self, column: Any, term: Any, row: Any) -> dict[Any, Any]:
        """Values of the product's iterators."""
        product = self.product
        values = {one.var: tirx.const(0, "int64") for one in product.block.iter_vars}
        extents = [product.what.extents[i] for i in product.rows]
        for at, value in zip(product.rows, unravel(row, extents), strict=True):
            values[product.block.iter_vars[at].var] = value
        values[product.block.iter_vars[product.n].var] = column
        values[product.block.iter_vars[product.k].var] = term
        return values

    def _body(self) -> Iterator[Any]:
        zero = tirx.const(0, "float32")
        yield self._each(lambda c, m: tirx.BufferStore(self.sums, zero, [c, m]))
        chunks = self.steps // self.together
        yield _for(chunks, self._chunk, tirx.ForKind.SERIAL)
        for power in reversed(range(WARP_SIZE.bit_length() - 1)):
            yield self._each(partial(self._add, 1 << power))
        yield tirx.IfThenElse(tirx.EQ(self.lane, 0), self._each(self._left), None)

    def _each(self, body: Callable[[Any, Any], Any]) -> Any:
        return _for(self.columns, lambda c: _for(self.product.count, lambda m: body(c, m)))

    def _add(self, distance: int, c: Any, m: Any) -> Any:
        own = tirx.BufferLoad(self.sums, [c, m])
        return tirx.BufferStore(self.sums, own + of_lane(own, distance), [c, m])

    def _chunk(self, chunk: Any) -> Any:
        """Load packed weights of some steps and columns, then multiply."""

        def group(t: Any) -> Any:
            return ((chunk * self.together + t) * WARP_SIZE + self.lane).astype("int64")

        def inside(t: Any, body: Any) -> Any:
            if self.groups % WARP_SIZE == 0:
                return body
            return tirx.IfThenElse(group(t) < self.groups, body, None)

        loads = _for(self.together, lambda t: inside(t, self._load(t, group(t))))
        return sequence([loads, _for(self.together, lambda t: inside(t, self._used(t, group(t))))])

    def _load(self, t: Any, group: Any) -> Any:
        def column(c: Any) -> Any:
            at = tirx.min(self._column(c), self.width - 1) if self._cut() else self._column(c)
            var = tirx.Var("v", "int32")
            values = self._values(at, tirx.const(0, "int64"), tirx.const(0, "int64"))
            indices = [substitute(i, values) for i in self._packed_load().indices[:-1]]
            word = tirx.BufferLoad(self.product.packed, [*indices, group * self.words + var])
            put = tirx.BufferStore(self.held, word, [t, c, var])
            return tirx.For(var, 0, self.words, tirx.ForKind.VECTORIZED, put)

        return _for(self.columns, column)

    def _packed_load(self) -> Any:
        loads = loads_in(self.product.weight)
        return next(load for load in loads if load.source.same_as(self.product.packed))

    def _cut(self) -> bool:
        return self.width % (_WARPS * self.columns) != 0

    def _used(self, t: Any, group: Any) -> Any:
        """Multiply a vector of weights of each column, part of the row after part."""
        zero = tirx.const(0, "float32")
        scale, rest = self._factored(group)
        first = [self._each(lambda c, m: tirx.BufferStore(self.partial, zero, [c, m]))]
        for e in range(self.vector):
            if e % self.part == 0:
                first.append(_for(self.product.count, partial(self._row_part, group, e)))
            first.append(_for(self.columns, partial(self._multiplied, t, group, rest, e)))

        def summed(c: Any, m: Any) -> Any:
            own, part = (tirx.BufferLoad(x, [c, m]) for x in (self.sums, self.partial))
            factor = part if scale is None else part * self._weight(scale, t, c, group, 0)
            return tirx.BufferStore(self.sums, own + factor, [c, m])

        return sequence([*first, self._each(summed)])

    def _row_part(self, group: Any, first: int, m: Any) -> Any:
        var = tirx.Var("v", "int32")
        term = group * self.vector + first + var
        values = self._values(tirx.const(0, "int64"), term, m.astype("int64"))
        at = [substitute(i, values) for i in self.product.x.indices]
        put = tirx.BufferStore(self.row, tirx.BufferLoad(self.product.x.source, at), [m, var])
        return tirx.For(var, 0, self.part, tirx.ForKind.VECTORIZED, put)

    def _multiplied(self, t: Any, group: Any, rest: Any, e: int, c: Any) -> Any:
        weight = tirx.Var("weight", "float32")

        def row(m: Any) -> Any:
            x = tirx.Cast("float32", tirx.BufferLoad(self.row, [m, e % self.part]))
            own = tirx.BufferLoad(self.partial, [c, m])
            return tirx.BufferStore(self.partial, own + x * weight, [c, m])

        bound = tirx.Bind(weight, self._weight(rest, t, c, group, e))
        return sequence([bound, _for(self.product.count, row)])

    def _weight(self, value: Any, t: Any, c: Any, group: Any, e: int) -> Any:
        """Part of the weight ``e`` of a vector, from registers where it is packed."""
        at = tirx.min(self._column(c), self.width - 1) if self._cut() else self._column(c)
        values = self._values(at, group * self.vector + e, tirx.const(0, "int64"))
        word = tirx.BufferLoad(self.held, [t, c, e // self.product.each])
        packed = self.product.packed
        swap = (tvm.ir.TensorLoad, lambda x: word if x.source.same_as(packed) else x)
        found = substitute(tvm_ffi.structural_map(value, [swap], order="post"), values)
        return tvm.sym.Analyzer().simplify(found)

    def _factored(self, group: Any) -> tuple[Any | None, Any]:
        """A factor that all weights of a vector share, and the rest of them."""
        value = self.product.weight
        if isinstance(value, tirx.Mul):
            for one, other in ((value.a, value.b), (value.b, value.a)):
                zero = tirx.const(0, "int32")
                ends = [self._weight(one, zero, zero, group, e) for e in (0, self.vector - 1)]
                is_packed = any(x.source.same_as(self.product.packed) for x in loads_in(one))
                if not is_packed and tvm_ffi.structural_equal(*ends):
                    return one, other
        return None, value

    def _left(self, c: Any, m: Any) -> Any:
        """Store what becomes of a sum."""
        product, block = self.product, self.product.block
        column = self._column(c)
        values = self._values(column, tirx.const(0, "int64"), m.astype("int64"))
        own = tirx.BufferLoad(self.sums, [c, m]).astype(str(block.body.buffer.dtype))
        made = [substitute(at, values) for at in block.body.indices]
        done = []
        for one in product.after:
            at = dict(zip((x.var for x in one.iter_vars), made, strict=True))
            swap = (tvm.ir.TensorLoad, lambda x: own if is_load_of(x, block.body.buffer) else x)
            value = substitute(tvm_ffi.structural_map(one.body.value, [swap], order="post"), at)
            indices = [substitute(i, at) for i in one.body.indices]
            done.append(tirx.BufferStore(one.body.buffer, value, indices))
        if not product.after:
            done = [tirx.BufferStore(block.body.buffer, own, made)]
        stored = sequence(done)
        return tirx.IfThenElse(column < self.width, stored, None) if self._cut() else stored
