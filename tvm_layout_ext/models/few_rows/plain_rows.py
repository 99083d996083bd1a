"""The rule for few rows by small weights of 16 bits: a lane's vectors are its fragments."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.target import Target

from ...gpu.hardware import MAX_ACCESS_BYTES, architecture
from ...ir.queries import loads_in, substitute
from ...ir.rebuild import sequence
from ...ir.walk import top_statements
from ...tune.space.functions import blocks_of
from ..products import inlined
from ..relax_values import NARROW_FLOATS
from ..rule import Scheduled
from .mma_rows import ROWS, WARPS, MmaRows
from .product import RowsProduct, follows, has_numbers

#: Rows of ``x`` at most, and weights. 8 rows by 1024 x 2048 bfloat16 take 3.6 us, 6.1 by ``wgmma``;
#: by 4096 x 1024 4.1 and 4.6, by 2048 x 2048 5.3 and 6.4, but by 1024 x 4096 in two turns 6.0 and
#: 5.6 (H200, ``benchmarks/results/h200_plain_rows.json``), by 2048 x 5632 11.3 and 10.5, and 16
#: rows by 4096 x 1024 5.1 and 4.4.
MOST_ROWS, _MOST_WEIGHTS = ROWS, 1 << 22
#: Warps of a multiprocessor below which several share the terms of a column, vectors of weights
#: that a lane loads together, and the lowest capability whose ``mma.sync`` has 16 terms.
_BUSY, _TOGETHER, _CAPABILITY = 24, 12, (8, 0)


def plain_rows(func: tirx.PrimFunc, target: Target) -> Scheduled | None:
    """Write a kernel of a product of 2 to :data:`MOST_ROWS` rows by small weights N x K.

    There tiles of 64 columns are fewer than multiprocessors, so that few of them would ask memory
    for weights; here a warp has 16, and eight share their terms. None where a product is larger, or
    has another form.
    """
    arch = architecture(str(target.attrs["arch"]))
    product = read_plain(func) if arch.capability >= _CAPABILITY else None
    if product is None or not 1 < product.count <= MOST_ROWS:
        return None
    kernel = PlainRows(product)
    if not kernel.is_legal() or kernel.width * kernel.terms > _MOST_WEIGHTS:
        return None
    name = product.block.name_hint
    return Scheduled.of(kernel.function(), f"{name} by weights as they lie, {kernel.text()}")


def read_plain(func: tirx.PrimFunc) -> RowsProduct | None:
    """Take apart a function of one product, whose weights are N x K and of 16 bits."""
    sch, products = inlined(func)
    if len(products) != 1:
        return None
    func, (what,) = sch.mod["main"], products.values()
    blocks = [block for _, block in blocks_of(func)]
    product = next(one for one in blocks if one.init is not None)
    after = tuple(one for one in blocks if one is not product)
    n, k = ([i for i in group if what.extents[i] > 1] for group in (what.columns, what.depth))
    single = len(n) == len(k) == 1 and all(what.extents[i] == 1 for i in what.batch)
    if not single or not has_numbers(product) or not all(follows(one, product) for one in after):
        return None
    if len(blocks) != len(top_statements(func)) or what.sums != "float32":
        return None
    weight, x = (
        next(one for one in loads_in(product.body) if one.source.same_as(side.buffer))
        for side in (what.b, what.a)
    )
    kinds = {str(one.source.dtype) for one in (weight, x)}
    if len(kinds) != 1 or not kinds <= set(NARROW_FLOATS):
        return None
    known = weight, weight, weight.source
    return RowsProduct(func, product, after, what, *known, 1, x, n[0], k[0], what.rows)


def _divisor(number: int, most: int) -> int:
    """The largest divisor up to a number, or 1."""
    return next((n for n in range(min(number, most), 1, -1) if number % n == 0), 1)


class PlainRows(MmaRows):
    """Weights of 16 bits: a lane's vector of 8 terms is the fragments of two instructions."""

    along, apart = 2, 1

    def __init__(self, product: RowsProduct) -> None:
        each = MAX_ACCESS_BYTES // 2
        super().__init__(product, product.count, 1, each, _BUSY, WARPS)
        own = _divisor(self.vectors // self.sharing, _TOGETHER)
        self.allocate(own, own)
        self.held = self.registers("weights", self.dtype, self.together, 2, each)
        self.kept.append(self.held)

    def is_legal(self) -> bool:
        """Whether vectors of all lanes are whole, are loaded at once, and lie together."""
        k = self.product.block.iter_vars[self.product.k].var
        sides = (self.product.x, self.product.weight)
        whole = self.vectors > 0 and self.vectors == self.chunk
        return whole and all(
            one.indices[-1].same_as(k) and int(one.source.shape[-1]) % self.vector == 0
            for one in sides
        )

    def load(self, u: Any, vector: Any) -> Any:
        """Load 8 terms of each column."""
        term = (vector * 4 + self.thread) * self.vector

        def column(h: int) -> Any:
            var = tirx.Var("v", "int32")
            _, n = self.column_of(h)
            values = self.values(n, (term + var).astype("int64"), tirx.const(0, "int64"))
            at = [substitute(i, values) for i in self.product.weight.indices]
            load = tirx.BufferLoad(self.product.weight.source, at)
            put = tirx.BufferStore(self.held, load, [u, h, var])
            return tirx.For(var, 0, self.each, tirx.ForKind.VECTORIZED, put)

        return sequence(map(column, range(2)))

    def unpack(self, u: int, h: int, word: int, p: int) -> list[Any]:
        """Two neighbours are a register."""
        pair = self.pair_of(p, lambda e: (self.held, [u, h, e]))
        return [tirx.BufferStore(self.a, pair, [h, p])]
