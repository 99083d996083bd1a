"""The rule for few rows by packed weights: each weight is read once, 16 bytes of a lane at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import gcd
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target

from ...coalesce.rows.emit import of_lane
from ...gpu.hardware import MAX_ACCESS_BYTES, MULTIPROCESSORS, WARP_SIZE
from ...ir.queries import loads_in, substitute
from ...ir.rebuild import sequence
from ..few_rows.kernel import RowsKernel, unrolled
from ..few_rows.product import RowsProduct
from ..rule import Scheduled
from .unpacked import read_unpacked

#: Rows that share a weight in registers; with more, tensor cores are faster.
MOST_ROWS = 8
#: Warps of a block; columns of a warp that share what it reads of a row; vectors of packed weights
#: that a lane loads together; warps of a multiprocessor below which columns go to more warps.
_WARPS, _COLUMNS, _TOGETHER, _BUSY = 4, (4, 2, 1), 4, 12


def few_rows(func: tirx.PrimFunc, target: Target) -> Scheduled | None:
    """Write a kernel of a product of up to :data:`MOST_ROWS` rows by weights that are packed.

    A warp has some columns. Its lanes share out the terms, and what they have is summed up by
    shuffles. None where nothing is unpacked, for two products, or where there are more rows.
    """
    del target  # The kernel suits all.
    product = read_unpacked(func)
    if product is None or product.beside is not None or product.count > MOST_ROWS:
        return None
    kernel = _FewRows(product)
    name = product.block.name_hint
    return Scheduled.of(kernel.function(), f"{name} by packed weights, {kernel.text()}")


class _FewRows(RowsKernel):
    def __init__(self, product: RowsProduct) -> None:
        super().__init__(product)
        packed = product.packed
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
        self.sums = self.registers("sums", "float32", self.columns, product.count)
        shape = self.together, self.columns, self.words
        self.held = self.registers("packed", str(packed.dtype), *shape)
        self.row = self.registers("row", str(product.x.source.dtype), product.count, self.part)
        self.partial = self.registers("partial", "float32", self.columns, product.count)
        self.kept = [self.sums, self.held, self.row, self.partial]
        self.warps, self.blocks = _WARPS, -(-self.width // (_WARPS * self.columns))

    def _neighbours(self) -> int:
        """Elements of a row of ``x`` that 16 bytes have, or 1 where they do not lie together."""
        x, k = self.product.x, self.product.block.iter_vars[self.product.k].var
        size = tvm.DataType(str(x.source.dtype)).itemsize
        return MAX_ACCESS_BYTES // size if x.indices[-1].same_as(k) else 1

    def text(self) -> str:
        """Tell it in a clause."""
        return f"{self.words} of {self.product.packed.dtype} a lane, {self.columns} columns a warp"

    def _column(self, c: Any) -> Any:
        return ((self.grid * _WARPS + self.warp) * self.columns + c).astype("int64")

    def body(self) -> Iterator[Any]:
        zero = tirx.const(0, "float32")
        yield self._each(lambda c, m: tirx.BufferStore(self.sums, zero, [c, m]))
        chunks = self.steps // self.together
        yield unrolled(chunks, self._chunk, tirx.ForKind.SERIAL)
        for power in reversed(range(WARP_SIZE.bit_length() - 1)):
            yield self._each(partial(self._add, 1 << power))
        yield tirx.IfThenElse(tirx.EQ(self.lane, 0), self._each(self._left), None)

    def _each(self, body: Callable[[Any, Any], Any]) -> Any:
        return unrolled(self.columns, lambda c: unrolled(self.product.count, lambda m: body(c, m)))

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

        loads = unrolled(self.together, lambda t: inside(t, self._load(t, group(t))))
        return sequence(
            [loads, unrolled(self.together, lambda t: inside(t, self._used(t, group(t))))]
        )

    def _load(self, t: Any, group: Any) -> Any:
        def column(c: Any) -> Any:
            at = tirx.min(self._column(c), self.width - 1) if self._cut() else self._column(c)
            var = tirx.Var("v", "int32")
            values = self.values(at, tirx.const(0, "int64"), tirx.const(0, "int64"))
            indices = [substitute(i, values) for i in self._packed_load().indices[:-1]]
            word = tirx.BufferLoad(self.product.packed, [*indices, group * self.words + var])
            put = tirx.BufferStore(self.held, word, [t, c, var])
            return tirx.For(var, 0, self.words, tirx.ForKind.VECTORIZED, put)

        return unrolled(self.columns, column)

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
                first.append(unrolled(self.product.count, partial(self._row_part, group, e)))
            first.append(unrolled(self.columns, partial(self._multiplied, t, group, rest, e)))

        def summed(c: Any, m: Any) -> Any:
            own, part = (tirx.BufferLoad(x, [c, m]) for x in (self.sums, self.partial))
            factor = part if scale is None else part * self._weight(scale, t, c, group, 0)
            return tirx.BufferStore(self.sums, own + factor, [c, m])

        return sequence([*first, self._each(summed)])

    def _row_part(self, group: Any, first: int, m: Any) -> Any:
        var = tirx.Var("v", "int32")
        term = group * self.vector + first + var
        values = self.values(tirx.const(0, "int64"), term, m.astype("int64"))
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
        return sequence([bound, unrolled(self.product.count, row)])

    def _weight(self, value: Any, t: Any, c: Any, group: Any, e: int) -> Any:
        """Part of the weight ``e`` of a vector, from registers where it is packed."""
        at = tirx.min(self._column(c), self.width - 1) if self._cut() else self._column(c)
        values = self.values(at, group * self.vector + e, tirx.const(0, "int64"))
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
        column = self._column(c)
        stored = self.stored(column, m.astype("int64"), tirx.BufferLoad(self.sums, [c, m]))
        return tirx.IfThenElse(column < self.width, stored, None) if self._cut() else stored
