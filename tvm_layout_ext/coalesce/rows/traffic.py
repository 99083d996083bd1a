"""What the elements of a chain take: vectors, registers, and bytes that are moved and kept."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import gcd, prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...analysis.nest import element_bytes
from ...gpu.hardware import MAX_ACCESS_BYTES
from ...ir.pointers import strides_of
from ...ir.queries import substitute, uses
from .chain import RowChain, RowLoad, RowStore


class RowTraffic:
    """Loads, stores and registers of a chain, with accesses of so many bytes at most."""

    def __init__(self, chain: RowChain, vector_bytes: int = MAX_ACCESS_BYTES) -> None:
        self.chain = chain
        self._most_bytes = vector_bytes

    @cached_property
    def stores(self) -> list[RowStore]:
        """Elements that leave the kernel."""
        blocks = [block for block in self.chain.blocks if block.kind == "elements"]
        return [store for b in blocks for store in b.stores if self.chain.is_output(store)]

    @cached_property
    def kept(self) -> list[RowLoad]:
        """Loads of rows, as against those that all rows share."""
        return [load for load in self.chain.loads if load.by_row]

    @cached_property
    def held(self) -> list[RowStore]:
        """Elements that are computed once and stay in registers: dear ones asked for again."""
        blocks = [block for block in self.chain.blocks if block.kind == "elements"]
        dear = [(b.level, s) for b in blocks for s in b.stores if _is_dear(s.value)]
        names = [store.name for _, store in dear]
        later = range(1, self.chain.levels)
        return [
            store
            for level, store in dear
            if any(n > level and self._asks(n, store.name, names) for n in later)
        ]

    def expanded(self, value: Any, held: Sequence[Any]) -> Any:
        """Put the values of elements in the place of their names, but for those that are held."""
        for block in reversed(self.chain.blocks):
            if block.kind == "elements":
                for store in block.stores:
                    if not any(store.name.same_as(name) for name in held):
                        value = substitute(value, {store.name: store.value})
        return value

    def _asks(self, level: int, name: Any, held: Sequence[Any]) -> bool:
        """Whether a value of a level asks for a name, through elements that are not held."""
        return any(
            uses(self.expanded(store.value, held), name)
            for block in self.chain.blocks
            if block.level == level and block.kind != "row"
            for store in block.stores
            if block.kind == "sum" or self.chain.is_output(store) or _is_in(store.name, held)
        )

    def loads_at(self, level: int) -> list[RowLoad]:
        """Loads that a level asks for where nothing is held."""
        return [load for load in self.chain.loads if level in self._levels[load.name.name]]

    @cached_property
    def _levels(self) -> dict[str, list[int]]:
        levels, names = range(self.chain.levels), [store.name for store in self.held]
        return {
            load.name.name: [
                n for n in levels if self._asks(n, load.name, ()) or self._asks(n, load.name, names)
            ]
            for load in self.chain.loads
        }

    def first_level(self, load: RowLoad) -> int:
        """The level at which a load is first asked for."""
        return self._levels[load.name.name][0]

    @cached_property
    def registers_an_element(self) -> float:
        """Registers that an element takes at the level where most are alive."""
        names = [store.name for store in self.held]
        levels = range(self.chain.levels)

        def bytes_after(level: int) -> int:
            return sum(
                element_bytes(one.buffer)
                for one in [*self.kept, *self.held]
                if any(self._asks(n, one.name, names) for n in levels[level:])
            )

        return max(bytes_after(level) for level in levels) / 4

    @cached_property
    def kept_bytes(self) -> int:
        """Bytes of an element that are loaded and kept."""
        return sum(element_bytes(load.buffer) for load in self.kept)

    @cached_property
    def moved_bytes(self) -> int:
        """Bytes of an element that are loaded once and stored."""
        return self.kept_bytes + sum(element_bytes(store.buffer) for store in self.stores)

    @cached_property
    def vector(self) -> int:
        """Elements of a step: what every row's accesses may take at once."""
        rows = [(one.buffer, one.indices) for one in [*self.kept, *self.stores]]
        most = min((self._most_bytes // element_bytes(buffer) for buffer, _ in rows), default=1)
        return min((self.width(*one, max(most, 1)) for one in rows), default=1)

    def width(self, buffer: Any, indices: Sequence[Any], most: int) -> int:
        """Elements along a row that one access may take, a power of two."""
        element = element_bytes(buffer)
        width = min(gcd(most, self.chain.length), MAX_ACCESS_BYTES // element)
        if str(buffer.dtype) == "bool":
            return 1
        while width > 1 and not self._is_vector(buffer, indices, width):
            width //= 2
        return width

    def _is_vector(self, buffer: Any, indices: Sequence[Any], width: int) -> bool:
        """Whether every group of so many neighbours lies side by side from a multiple of them."""
        chain, analyzer = self.chain, tvm.sym.Analyzer()
        group, part = (tirx.Var(name, chain.type) for name in ("group", "part"))
        analyzer.bind(group, tvm.ir.Range(0, chain.length // width))
        analyzer.bind(part, tvm.ir.Range(0, width))
        places = unravel(group * width + part, chain.columns)
        values = dict(zip(chain.column_vars, places, strict=True))
        offset = buffer.ty.elem_offset
        for index, stride in zip(indices, strides_of(buffer), strict=True):
            offset = offset + substitute(index, values) * stride
        offset = analyzer.simplify(offset)
        first = analyzer.simplify(substitute(offset, {part: tirx.const(0, part.ty)}))
        known = analyzer.modular_set(first)
        is_aligned = known.coeff % width == 0 and known.base % width == 0
        is_aligned = (
            is_aligned and int(buffer.ty.data_alignment) % (width * element_bytes(buffer)) == 0
        )
        return is_aligned and bool(analyzer.can_prove_equal(offset - first, part))


def _is_in(name: Any, names: Sequence[Any]) -> bool:
    return any(name.same_as(one) for one in names)


def _is_dear(value: Any) -> bool:
    """Whether a value is rather kept than computed again: it has a call or a quotient in it."""
    found: list[Any] = []
    tvm_ffi.structural_walk(value, [(tvm.ir.Call, found.append), (tirx.Div, found.append)])
    return bool(found)


def unravel(number: Any, extents: Sequence[Any]) -> list[Any]:
    """Take a number apart into indices of some extents."""
    parts = []
    for i, extent in enumerate(extents):
        rest = prod(extents[i + 1 :])
        is_last = i + 1 == len(extents)
        part = number if is_last else tirx.floordiv(number, rest)
        parts.append(part if i == 0 else tirx.floormod(part, extent))
    return parts
