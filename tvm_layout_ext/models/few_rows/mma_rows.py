"""Kernels of some rows by ``mma.sync``, whose weights go from memory to registers as they lie.

A warp has 16 columns of the product, which are the rows of ``m16n8k16``, and 8 rows of ``x`` are
its columns. A lane reads 16 bytes of the weights of two columns. Which terms lie where in a
fragment does not matter, as long as both factors agree: so a lane's own weights are its fragment.
Parts of ``x`` are put into shared memory in the order of these fragments.

Of two products that meet in one value a warp has 8 columns each. A lane's two columns are the same
one of both then, so that it has all sums of a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from ...gpu.hardware import MULTIPROCESSORS, WARP_SIZE
from ...ir.queries import substitute
from ...ir.rebuild import sequence
from .kernel import RowsKernel, unrolled
from .product import RowsProduct

#: Columns of a warp, rows of ``x`` of an instruction, and warps of a block.
COLUMNS, ROWS, WARPS = 16, 8, 8
PTX = {"float16": "f16", "bfloat16": "bf16"}


class MmaRows(RowsKernel):
    """A kernel of some rows.

    A lane's vector of 16 bytes has ``words``, which are multiplied one after the other. A word has
    ``each`` terms, two in each of ``pairs`` registers. Some warps share the terms of a column.
    """

    #: Elements of a word from a register to the next, and between both weights of a register.
    along: int
    apart: int
    #: What else is told of it, behind a comma.
    how = ""

    def __init__(
        self, product: RowsProduct, count: Any, words: int, each: int, busy: int, most: int
    ) -> None:
        super().__init__(product)
        self.dtype = str(product.x.source.dtype)
        self.words, self.each, self.pairs = words, each, each // 2
        #: Terms of a lane's vector, and of those of four lanes.
        self.vector = words * each
        self.step = 4 * self.vector
        self.vectors = 0 if self.terms % self.step else self.terms // self.step
        self.tiles = -(-product.count // ROWS)
        self.count = count if isinstance(count, int) else tirx.Cast("int32", count)
        self.each_member = COLUMNS // len(product.members)
        columns = -(-self.width // self.each_member)
        self.sharing = next(
            n for n in (1, 2, 4, 8) if n == most or columns * n >= MULTIPROCESSORS * busy
        )
        self.warps = WARPS
        self.blocks = -(-columns // (WARPS // self.sharing))
        #: Rows of eight that are in shared memory; lanes of others read the last.
        self.rows = min(ROWS, count) if isinstance(count, int) else ROWS
        #: Bytes of a vector of all rows there.
        self.staged_bytes = words * self.tiles * self.rows * 4 * self.pairs * 4
        self.group, self.thread = tirx.floordiv(self.lane, 4), tirx.floormod(self.lane, 4)
        self.share = tirx.floormod(self.warp, self.sharing)
        tile = self.grid * (WARPS // self.sharing) + tirx.floordiv(self.warp, self.sharing)
        self.first = tile * self.each_member

    def allocate(self, own: int, together: int, is_ahead: bool = False) -> None:
        """Make the buffers, of so many vectors of a warp in a chunk, and some loaded together.

        With ``is_ahead`` a chunk is all there is, and weights are loaded a turn ahead.
        """
        self.together, self.is_ahead = together, is_ahead
        #: Vectors of a chunk of ``x``, of all warps that share its terms.
        self.chunk = own * self.sharing
        new = self.registers
        self.sums = new("sums", "float32", self.tiles * 4)
        self.a = new("a", "uint32", 2, self.pairs)
        self.b = new("b", "uint32", self.pairs)
        self.row = new("row", self.dtype, self.each)
        # CUDA has one type for all dynamic shared memory of a name in a file, and TVM makes it one
        # of the vectors that all accesses of a kernel have.
        name = f"staged{self.pairs}" + ("_and_sums" if self.sharing > 1 else "")
        self.staged = tirx.decl_buffer(
            (self.chunk * self.staged_bytes // 4,),
            "uint32",
            name,
            scope="shared.dyn",
            layout=None,
        )
        self.kept = [self.sums, self.a, self.b, self.row, self.staged]
        if self.sharing > 1:
            shape = (self.warps * self.tiles * 4 * WARP_SIZE,)
            self.others = tirx.decl_buffer(
                shape, "float32", "others", scope="shared.dyn", layout=None
            )
            self.kept.append(self.others)

    def text(self) -> str:
        """Tell it in a clause."""
        share = f", {self.sharing} warps to a column" if self.sharing > 1 else ""
        return f"{self.tiles * ROWS} rows by mma.sync{self.how}{share}"

    def column_of(self, h: int) -> tuple[int, Any]:
        """Which product one of a lane's two columns is of, and its place there."""
        is_alone = self.product.beside is None
        place = self.first + self.group + (h * 8 if is_alone else 0)
        return (0 if is_alone else h), tirx.min(place, self.width - 1).astype("int64")

    def load(self, u: Any, vector: Any) -> Any:
        """Load a vector of the weights of both columns."""
        raise NotImplementedError

    def unpack(self, u: int, h: int, word: int, p: int) -> list[Any]:
        """Put two weights into a register of ``a``."""
        raise NotImplementedError

    def body(self) -> Iterator[Any]:
        """What a warp does."""
        zero = tirx.const(0, "float32")
        yield unrolled(self.tiles * 4, lambda i: tirx.BufferStore(self.sums, zero, [i]))
        # The first loads are of weights, which a kernel need not wait for; they are in flight over
        # the barrier.
        if self.vectors <= self.chunk == self.sharing * self.together:
            yield from (self._loads(0, 0), self._stage(0), *self._multiplications(0))
        elif self.is_ahead:
            yield from (self._loads(0, 0), self._stage(0), self._turns())
        else:
            chunks = -(-self.vectors // self.chunk)
            yield unrolled(chunks, self._chunk, tirx.ForKind.SERIAL)
        if self.sharing > 1:
            yield from self._added_up()
        leads = tirx.EQ(self.share, 0)
        yield tirx.IfThenElse(leads, sequence(list(self._results())), None)

    def _turns(self) -> Any:
        """Multiply vector by vector, while those of the next turn are loaded."""
        turns = self.chunk // self.sharing // self.together

        def both(pair: Any) -> Any:
            made = []
            for half in range(2):
                turn = pair * 2 + half
                made += [self._loads(0, turn + 1, 1 - half), *self._multiplications(turn, half)]
            return sequence(made)

        return unrolled(turns // 2, both, tirx.ForKind.SERIAL)

    def _chunk(self, chunk: Any) -> Any:
        """Put a part of ``x`` into shared memory, and multiply all weights of its terms."""
        begin = chunk * self.chunk
        count = self.chunk // self.sharing // self.together
        vectors = unrolled(
            count,
            lambda i: sequence([self._loads(begin, i), *self._multiplications(i)]),
            tirx.ForKind.SERIAL,
        )
        return sequence([self._stage(begin), vectors])

    def _stage(self, begin: Any) -> Any:
        """Fragments of ``x`` by vector, word, eight rows and lane."""
        pieces = self.chunk * self.words * self.tiles
        lanes = self.rows * 4
        threads = self.warps * WARP_SIZE
        last = self.count - 1

        def one(turn: Any) -> Any:
            slot = turn * threads + self.warp * WARP_SIZE + self.lane
            piece, lane = tirx.floordiv(slot, lanes), tirx.floormod(slot, lanes)
            group, thread = tirx.floordiv(lane, 4), tirx.floormod(lane, 4)
            tile = tirx.floormod(piece, self.tiles)
            word = tirx.floormod(tirx.floordiv(piece, self.tiles), self.words)
            vector = begin + tirx.floordiv(piece, self.tiles * self.words)
            vector = tirx.min(vector, self.vectors - 1)
            row = tirx.min(tile * ROWS + group, last).astype("int64")
            term = (vector * 4 + thread).astype("int64") * self.vector + word * self.each
            var, put = tirx.Var("v", "int32"), tirx.Var("p", "int32")
            values = self.values(tirx.const(0, "int64"), term + var, row)
            at = [substitute(i, values) for i in self.product.x.indices]
            load = tirx.BufferStore(self.row, tirx.BufferLoad(self.product.x.source, at), [var])
            place = slot * self.pairs

            pack = [
                tirx.BufferStore(self.b, self.pair_of(p, lambda e: (self.row, [e])), [p])
                for p in range(self.pairs)
            ]
            store = tirx.BufferStore(self.staged, tirx.BufferLoad(self.b, [put]), [place + put])
            vectorized = tirx.ForKind.VECTORIZED
            made = sequence(
                [
                    tirx.For(var, 0, self.each, vectorized, load),
                    *pack,
                    tirx.For(put, 0, self.pairs, vectorized, store),
                ]
            )
            if pieces * lanes % threads == 0:
                return made
            return tirx.IfThenElse(slot < pieces * lanes, made, None)

        return unrolled(-(-pieces * lanes // threads), one, tirx.ForKind.SERIAL)

    def _inside(self, turn: Any, u: Any) -> Any:
        """Which vector of a chunk a warp has."""
        return (turn * self.together + u) * self.sharing + self.share

    def _loads(self, begin: Any, turn: Any, half: int = 0) -> Any:
        """Load some vectors of weights into a half of what is held."""

        def one(u: Any) -> Any:
            return self.load(u + half * self.together, begin + self._inside(turn, u))

        return unrolled(self.together, one)

    def _multiplications(self, turn: Any, half: int = 0) -> list[Any]:
        """Multiply them."""
        return [
            self._multiply(u + half * self.together, self._inside(turn, u))
            for u in range(self.together)
        ]

    def pair_of(self, p: int, place: Callable[[int], tuple[Any, list[Any]]]) -> Any:
        """Both weights of a register, from where elements of a word are."""
        low, high = (
            tirx.Cast("uint32", T.reinterpret("uint16", tirx.BufferLoad(*place(e))))
            for e in (p * self.along, p * self.along + self.apart)
        )
        return tirx.bitwise_or(low, tirx.shift_left(high, tirx.const(16, "uint32")))

    def _multiply(self, u: int, inside: Any) -> Any:
        """Multiply a vector's words one after the other."""
        made = []
        for word in range(self.words):
            for h in range(2):
                made += [one for p in range(self.pairs) for one in self.unpack(u, h, word, p)]
            made.append(unrolled(self.tiles, partial(self._by_rows, inside, word)))
        return sequence(made)

    def _by_rows(self, inside: Any, word: int, tile: Any) -> Any:
        """Multiply a word of each lane by eight rows."""
        piece = (inside * self.words + word) * self.tiles + tile
        var = tirx.Var("v", "int32")
        group = tirx.min(self.group, self.rows - 1) if self.rows < ROWS else self.group
        place = ((piece * self.rows + group) * 4 + self.thread) * self.pairs + var
        load = tirx.BufferStore(self.b, tirx.BufferLoad(self.staged, [place]), [var])
        kind = PTX[self.dtype]
        product: Any = T.ptx[f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32"]
        sums = [tirx.BufferLoad(self.sums, [tile * 4 + i]) for i in range(4)]
        made = [tirx.For(var, 0, self.pairs, tirx.ForKind.VECTORIZED, load)]
        for s in range(self.pairs // 2):
            a = [tirx.BufferLoad(self.a, [h, 2 * s + i]) for i in range(2) for h in range(2)]
            b = [tirx.BufferLoad(self.b, [2 * s + i]) for i in range(2)]
            made.append(tirx.Evaluate(product(*sums, *a, *b, *sums)))
        return sequence(made)

    def _added_up(self) -> Iterator[Any]:
        """Add up what the warps have that share a column's terms."""
        count = self.tiles * 4

        def place(warp: Any, i: Any) -> Any:
            return (warp * count + i) * WARP_SIZE + self.lane

        def put(i: Any) -> Any:
            return tirx.BufferStore(
                self.others, tirx.BufferLoad(self.sums, [i]), [place(self.warp, i)]
            )

        def add(i: Any) -> Any:
            total = tirx.BufferLoad(self.sums, [i])
            for other in range(1, self.sharing):
                warp = tirx.min(self.warp + other, self.warps - 1)
                total = total + tirx.BufferLoad(self.others, [place(warp, i)])
            return tirx.BufferStore(self.sums, total, [i])

        yield unrolled(count, put)
        yield unrolled(count, add)

    def _results(self) -> Iterator[Any]:
        count = 4 // len(self.product.members)
        for tile in range(self.tiles):
            for i in range(count):
                column = self.first + self.group + i // 2 * 8
                row = tile * ROWS + self.thread * 2 + i % 2
                own = [tirx.BufferLoad(self.sums, [tile * 4 + at]) for at in range(i, 4, count)]
                stored = self.stored(column.astype("int64"), row.astype("int64"), *own)
                inside = []
                if self.width % (self.each_member * self.warps // self.sharing):
                    inside.append(column < self.width)
                if not isinstance(self.count, int) or self.count % ROWS:
                    inside.append(row < self.count)
                yield tirx.IfThenElse(tirx.all(*inside), stored, None) if inside else stored
