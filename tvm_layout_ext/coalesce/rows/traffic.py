"""What the elements of a chain take: vectors, registers, and bytes that are moved and kept."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import gcd, prod
from typing import Any

import tvm
from tvm import tirx

from ...analysis.nest import element_bytes
from ...gpu.hardware import MAX_ACCESS_BYTES
from ...ir.pointers import strides_of
from ...ir.queries import is_among, is_number, nodes_in, substitute, uses
from .chain import RowBlock, RowChain, RowLoad, RowStore

#: Bytes of the smallest asynchronous copy.
_COPIED = 4
#: Vectors of a row from which on its ends may be cut out of vectors that it shares.
_VECTORS = 4


class RowTraffic:
    """Loads, stores and registers of a chain, with accesses of so many bytes at most.

    ``stores`` are elements that leave the kernel, ``kept`` loads of rows, as against those that all
    rows share, and ``dear`` elements that are asked for again and have a call or a quotient in
    them, with their levels: where a plan says so they are computed once and stay in registers.
    """

    def __init__(self, chain: RowChain, vector_bytes: int = MAX_ACCESS_BYTES) -> None:
        self.chain, self._most_bytes = chain, vector_bytes
        elements = [(b.level, s) for b in chain.blocks if b.kind == "elements" for s in b.stores]
        self._elements = [store for _, store in elements]
        self.stores = [store for store in self._elements if chain.is_output(store)]
        self.kept = [load for load in chain.loads if load.by_row]
        calls = [(n, store) for n, store in elements if _has_call(store.value)]
        names = [store.name for _, store in calls]
        self.dear = [(n, s) for n, s in calls if any(m > n for m in self.levels_of(s.name, names))]
        #: How often a row's elements are gone over.
        self.sweeps = len({n for load in self.kept for n in self.levels_of(load.name)})

    def expanded(self, value: Any, held: Sequence[Any]) -> Any:
        """Put the values of elements in the place of their names, but for those that are held."""
        for store in reversed(self._elements):
            if not is_among(store.name, held):
                value = substitute(value, {store.name: store.value})
        return value

    def levels_of(self, name: Any, held: Sequence[Any] = ()) -> list[int]:
        """Levels that ask for a name, through elements that are not held."""
        return sorted(
            {
                block.level
                for block in self.chain.blocks
                for store in block.stores
                if block.kind == "sum"
                or (block.kind == "elements" and self.chain.is_output(store))
                or is_among(store.name, held)
                if uses(self.expanded(store.value, held), name)
            }
        )

    @cached_property
    def kept_bytes(self) -> int:
        """Bytes of an element that are loaded and kept."""
        return sum(element_bytes(load.buffer) for load in self.kept)

    @cached_property
    def common_bytes(self) -> int:
        """Bytes of an element that all rows share."""
        return sum(element_bytes(x.buffer) for x in self.chain.loads if not x.by_row)

    @cached_property
    def moved_bytes(self) -> int:
        """Bytes of an element that are loaded once and stored."""
        return self.kept_bytes + sum(element_bytes(store.buffer) for store in self.stores)

    @cached_property
    def result_bytes(self) -> int:
        """Bytes of what a warp tells the others of its row."""
        return sum(4 * result_words(b) for b in self.chain.blocks if b.kind == "sum")

    @cached_property
    def may_copy_rows(self) -> bool:
        """Whether steps of rows may be copied to shared memory asynchronously."""
        return self._may_copy(self.kept)

    @cached_property
    def may_copy_common(self) -> bool:
        """Whether steps of what all rows share may be, before a level that asks for them."""
        common = [load for load in self.chain.loads if not load.by_row]
        is_late = all(min(self.levels_of(load.name), default=0) > 0 for load in common)
        return is_late and self._may_copy(common)

    def _may_copy(self, loads: Sequence[RowLoad]) -> bool:
        sizes = [self.width(x, self.vector) * element_bytes(x.buffer) for x in loads]
        return self.vector == self.whole and min(sizes, default=0) >= _COPIED

    def element_registers(self, *, hold: bool) -> float:
        """Registers that an element takes at the level where most are alive."""
        held = self.dear if hold else []
        names = [store.name for _, store in held]
        spans: list[Any] = [(0, self.levels_of(x.name, names), x, 1) for x in self.kept]
        spans += [(n, [n, *self.levels_of(store.name, names)], store, 0) for n, store in held]
        most = 0
        for level in range(self.chain.levels):
            # Elements that a level computes take the place of those that it computes them from.
            before = [x for f, at, x, load in spans if f < level + load and max(at) >= level]
            after = [x for f, at, x, _ in spans if f <= level < max(at)]
            most = max(most, *(sum(element_bytes(x.buffer) for x in s) for s in (before, after)))
        return most / 4

    @cached_property
    def whole(self) -> int:
        """Elements that every row's accesses may take at once, each row from its own start."""
        rows: list[RowLoad | RowStore] = [*self.kept, *self.stores]
        most = min((self._most_bytes // element_bytes(one.buffer) for one in rows), default=1)
        return min((self.width(one, max(most, 1)) for one in rows), default=1)

    @cached_property
    def vector(self) -> int:
        """Elements of a step: those, or an aligned vector, in which rows begin anywhere."""
        sizes = [element_bytes(load.buffer) for load in self.kept]
        aligned = max(self._most_bytes // sizes[0], 1) if len(sizes) == 1 else 1
        is_askew = self.chain.length % aligned and self.chain.length >= _VECTORS * aligned
        return aligned if is_askew and self.start is not None else self.whole

    @cached_property
    def start(self) -> Any | None:
        """Element at which a row begins, where threads may take vectors that begin before it.

        A row of 257 halves begins in the middle of 16 bytes. Threads take the aligned vectors that
        it has a part in, and leave out what the rows around it have of the first and the last. So
        they may where they load one buffer, whose rows are in one piece, and store no elements.
        """
        chain, load = self.chain, self.kept[0]
        if len(chain.loads) > 1 or self.stores or is_among(load.buffer, chain.made):
            return None
        ty, analyzer = load.buffer.ty, tvm.sym.Analyzer()
        is_whole = int(ty.data_alignment) % MAX_ACCESS_BYTES == 0 and not ty.strides
        if not is_whole or not is_number(ty.elem_offset, 0):
            return None
        column = tirx.Var("column", chain.type)
        analyzer.bind(column, tvm.ir.Range(0, chain.length))
        first, other = (
            self._offset(load, unravel(at, chain.columns)) for at in (column * 0, column)
        )
        runs_on = analyzer.can_prove_equal(other - first, column)
        return analyzer.simplify(first) if runs_on else None

    def _offset(self, one: RowLoad | RowStore, columns: Sequence[Any]) -> Any:
        """Number of an element in its buffer, counted from its first."""
        values = dict(zip(self.chain.column_vars, columns, strict=True))
        offset = one.buffer.ty.elem_offset
        for index, stride in zip(one.indices, strides_of(one.buffer), strict=True):
            offset = offset + substitute(index, values) * stride
        return offset

    def width(self, one: RowLoad | RowStore, most: int) -> int:
        """Elements along a row that one access may take, a power of two."""
        width = min(gcd(most, self.chain.length), MAX_ACCESS_BYTES // element_bytes(one.buffer))
        if str(one.buffer.dtype) == "bool":
            return 1
        while width > 1 and not self._is_vector(one, width):
            width //= 2
        return width

    def _is_vector(self, one: RowLoad | RowStore, width: int) -> bool:
        """Whether every group of so many neighbours lies side by side from a multiple of them."""
        chain, analyzer = self.chain, tvm.sym.Analyzer()
        group, part = (tirx.Var(name, chain.type) for name in ("group", "part"))
        analyzer.bind(group, tvm.ir.Range(0, chain.length // width))
        analyzer.bind(part, tvm.ir.Range(0, width))
        places = unravel(group * width + part, chain.columns)
        offset = analyzer.simplify(self._offset(one, places))
        first = analyzer.simplify(substitute(offset, {part: tirx.const(0, part.ty)}))
        known, ty = analyzer.modular_set(first), one.buffer.ty
        if any(n % width for n in (known.coeff, known.base)):
            return False
        is_whole = int(ty.data_alignment) % (width * element_bytes(one.buffer)) == 0
        return is_whole and bool(analyzer.can_prove_equal(offset - first, part))


def words_of(dtype: Any) -> int:
    """Words of 32 bits that hold a value."""
    return -(-tvm.DataType(str(dtype)).bits // 32)


def result_words(block: RowBlock) -> int:
    """Words of the results of a reduction, which stores of 1, 2 or 4 of them take whole."""
    words = sum(words_of(store.buffer.dtype) for store in block.stores)
    unit = min(1 << (words - 1).bit_length(), 4)
    return -(-words // unit) * unit


def _has_call(value: Any) -> bool:
    return bool(nodes_in(value, tvm.ir.Call, tirx.Div))


def unravel(number: Any, extents: Sequence[Any]) -> list[Any]:
    """Take a number apart into indices of some extents."""
    parts = []
    for i, extent in enumerate(extents):
        part = number if i + 1 == len(extents) else tirx.floordiv(number, prod(extents[i + 1 :]))
        parts.append(part if i == 0 else tirx.floormod(part, extent))
    return parts
