"""What a block multiplies: its iterators, its operands, and how they lie in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import tvm
from tvm import tirx

from ..errors import ScheduleError
from ..gpu.halos import Halo, best_halo
from ..ir.annotations import INPUT_PRECISION, TF32
from ..ir.conditions import is_zero
from ..ir.evaluate import placeholder_extent
from ..ir.queries import is_load_of

#: Rows, columns and terms of the smallest tile.
_TILE = 16


@dataclass(frozen=True)
class Operand:
    """One factor of the product."""

    index: int  #: Which of the regions that the block reads
    buffer: Any  #: What is read
    #: The last index is a summed one, so that neighbours in memory are neighbours along K.
    k_major: bool
    dims: tuple[int, ...]  #: Positions of the iterators by which it is indexed
    #: Factors of the iterators of each index that is a sum of multiples of them.
    sums: tuple[dict[int, int], ...] = ()

    @property
    def is_window(self) -> bool:
        """Whether an index is a sum of several iterators, or a multiple of one.

        As a convolution's are.
        """
        return any(sum(one.values()) > 1 for one in self.sums)


@dataclass(frozen=True)
class Contraction:
    """``C[b..., m..., n...] += A[b..., m..., k...] * B[b..., n..., k...]``, each in any order."""

    #: Positions, among the block's iterators, of those in A, B and C, and of others of extent 1.
    batch: tuple[int, ...]
    #: Positions of m (in A and C), n (in B and C) and k (summed, in A and B). Of several, the last
    #: is the one whose neighbours are neighbours in memory.
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    depth: tuple[int, ...]
    #: Of all iterators; symbolic ones, of batches or whole tiles, as if each variable were 1021
    extents: tuple[int, ...]
    a: Operand  #: The factors; B is the one with n, along which C has its neighbours
    b: Operand
    operand: str  #: Types of both factors and of C
    sums: str
    result: tuple[int, ...]  #: Positions of the iterators by which C is indexed
    #: Whether operands of float32 may be rounded to tf32, as annotation :data:`.INPUT_PRECISION`
    #: of the block says.
    tf32: bool = False

    @property
    def is_in_full(self) -> bool:
        """Whether tensor cores would drop bits of the operands, which nobody allows."""
        return self.operand == "float32" and not self.tf32

    @property
    def order(self) -> tuple[int, ...]:
        """Positions of the iterators as batch, m, n, k."""
        return (*self.batch, *self.rows, *self.columns, *self.depth)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Extents of m, n and k."""
        m, n, k = (prod(self.extents[i] for i in g) for g in (self.rows, self.columns, self.depth))
        return m, n, k

    @property
    def halo(self) -> Halo | None:
        """The halo of windows of A that move by single rows; None if there is none that pays."""
        places = [i for i in self.depth[:-1] if self.extents[i] > 1]
        reach = []
        for place in places:
            found = [one for one in self.a.sums if place in one]
            along = [self.rows.index(i) for i in found[0] if i in self.rows] if found else []
            if len(found) != 1 or len(along) != 1:
                return None
            reach.append((along[0], found[0][place]))
        if not places or any(one.get(i, 1) != 1 for one in self.a.sums for i in self.rows):
            return None
        extents, sizes = ([self.extents[i] for i in group] for group in (self.rows, places))
        best = best_halo(extents, sizes, reach)
        return None if best is None else best[1]

    @property
    def transposed(self) -> Contraction:
        """The product of B and A."""
        return replace(self, rows=self.columns, columns=self.rows, a=self.b, b=self.a)


def term_of(block: Any, kind: Any) -> Any:
    """What a block adds to its sum, or compares with its maximum; None if it does not."""
    value, buffer = getattr(block.body, "value", None), getattr(block.body, "buffer", None)
    if block.init is None or not isinstance(value, kind):
        return None
    rest = [one for one in (value.a, value.b) if not is_load_of(one, buffer)]
    return rest[0] if len(rest) == 1 else None


def read_contraction(block: Any) -> Contraction:
    """Take a block apart: a sum of products of two buffers with an m, an n and a k."""
    return _ContractionReader(block).read()


def iterators_of(block: Any, index: Any) -> list[int]:
    """Positions of the iterators of an index that counts them through, as ``(a * 5 + b) * 3 + c``.

    The fastest comes last; only the first may have a symbolic extent. There are none where the
    index has another form, or is a number.
    """
    own = block.iter_vars
    terms = []
    for step, var in _terms(index, 1):
        at = next((i for i, one in enumerate(own) if one.var.same_as(var)), None)
        if at is None:
            return []
        extent = own[at].dom.extent
        terms.append((step, int(extent) if isinstance(extent, tirx.IntImm) else 0, at))
    if len(terms) == 1:
        return [terms[0][2]] if terms[0][0] == 1 else []
    length, found = 1, list[int]()
    for step, extent, at in sorted(terms):
        if step != length:
            return []
        length *= extent
        found.insert(0, at)
    return found


def window_of(block: Any, index: Any) -> dict[int, int]:
    """Factors of the iterators of a sum of multiples of them, as ``y * 2 + r``; else none.

    Those of extent 1 are left out, as TVM leaves them out of what it makes of the index.
    """
    terms = [(n, var) for n, var in _terms(index, 1) if not isinstance(var, tirx.IntImm)]
    own = block.iter_vars
    found = {i: n for n, var in terms for i, one in enumerate(own) if one.var.same_as(var)}
    if len(found) < len(terms):
        return {}
    return {i: n for i, n in found.items() if placeholder_extent(own[i].dom.extent) > 1} or found


def _terms(index: Any, factor: int) -> list[tuple[int, Any]]:
    """Parts of a sum, each with its factor."""
    if isinstance(index, tirx.Add):
        return [*_terms(index.a, factor), *_terms(index.b, factor)]
    if isinstance(index, tirx.Mul) and isinstance(index.b, tirx.IntImm):
        return _terms(index.a, factor * int(index.b))
    return [(factor, index)]


class _ContractionReader:
    def __init__(self, block: Any) -> None:
        self.block = block
        self.name = f"Block {block.name_hint}"
        self.variables = [iterator.var for iterator in block.iter_vars]

    def read(self) -> Contraction:
        store = self._store()
        left, right = self._factors(store)
        extents = self._extents()
        out = self._positions(store.buffer, store.indices, iterators_of)
        first, second = (
            self._positions(one.source, one.indices, self._iterators) for one in (left, right)
        )
        summed = self._summed()
        self._check_depth(summed, first, second)
        rows = tuple(i for i in out if i in first and i not in second)
        columns = tuple(i for i in out if i in second and i not in first)
        self._require("m (in one factor and the result)", rows)
        self._require("n (in the other factor and the result)", columns)
        rows, columns = self._ordered(rows, first, out), self._ordered(columns, second, out)
        if max((*rows, *columns), key=out.index) in rows:
            left, right, first, second = right, left, second, first
            rows, columns = columns, rows
        images = [*self._images(rows), *self._images(columns)]
        rows, columns = (tuple(i for i in g if i not in images) for g in (rows, columns))
        groups = (rows, columns, self._ordered(summed, first, second))
        self._check_tiles(*groups)
        used = {i for group in groups for i in group}
        batch = tuple(i for i in range(len(extents)) if i not in (*used, *out))
        batch += tuple(i for i in out if i not in used)
        self._check_batch([i for i in batch if i not in images], first, second, out)
        a = self._operand(left, first, summed, rows)
        b = self._operand(right, second, summed, columns)
        sums = str(store.buffer.dtype)
        operand = self._type(left, right)
        tf32 = self.block.annotations.get(INPUT_PRECISION) == TF32
        return Contraction(batch, *groups, extents, a, b, operand, sums, tuple(out), tf32)

    def _store(self) -> Any:
        body = self.block.body
        if self.block.init is None:
            raise ScheduleError(
                f"{self.name} has no initial value in it; use_tensor_core comes before "
                "decompose_reduction, and wants a sum."
            )
        initial = self.block.init
        if not isinstance(body, tirx.BufferStore) or not isinstance(initial, tirx.BufferStore):
            raise ScheduleError(f"{self.name} is no single statement C = C + A * B.")
        if not is_zero(initial.value):
            raise ScheduleError(f"{self.name} starts at {initial.value}; tensor cores start at 0.")
        return body

    def _factors(self, store: Any) -> tuple[Any, Any]:
        term = term_of(self.block, tirx.Add)
        if not isinstance(term, tirx.Mul):
            raise ScheduleError(f"{self.name} is no sum C = C + A * B, but {store.value}.")
        factors = [self._load(one, store.buffer.dtype) for one in (term.a, term.b)]
        if factors[0].source.same_as(factors[1].source):
            raise ScheduleError(
                f"{self.name} multiplies {factors[0].source.name} by itself; tensor cores need two "
                "buffers, so copy one of them first."
            )
        return factors[0], factors[1]

    def _load(self, value: Any, sums: Any) -> Any:
        inner = value.value if isinstance(value, tirx.Cast) else value
        if not isinstance(inner, tvm.ir.TensorLoad):
            raise ScheduleError(
                f"{self.name} multiplies {value}; a factor must be an element of a buffer, "
                f"itself or cast to {sums}."
            )
        return inner

    def _iterators(self, block: Any, index: Any) -> list[int]:
        # Of a sum, TVM keeps iterators of extent 1 only where all are.
        found = iterators_of(block, index) or list(window_of(block, index))
        return [i for i in found if not self._is_unit(i)] or found

    def _positions(
        self, buffer: Any, indices: Sequence[Any], iterators: Callable[[Any, Any], list[int]]
    ) -> list[int]:
        found = list[int]()
        for index in indices:
            if isinstance(index, tirx.IntImm):
                continue
            at = iterators(self.block, index)
            if not at or any(i in found for i in at):
                raise ScheduleError(
                    f"{self.name} indexes {buffer.name} by {index}; every index must be a "
                    "number, an iterator of its own, or a slice's times its length and one; those "
                    "of a factor may also be sums of multiples of iterators."
                )
            found.extend(at)
        return found

    def _images(self, rows: Sequence[int]) -> list[int]:
        """Rows that no tile cuts: a batch. Whole tiles are cut, or else rows of a known number.

        As images are, of which each has so many rows of pixels.
        """
        wide = [i for i in rows if not self._is_unit(i)]
        cut = [i for i in wide if not self._is_number(i) and self._is_whole_tiles(i)]
        cut = cut or [i for i in wide if self._is_number(i)]
        return [i for i in wide if i not in cut] if cut else []

    def _is_number(self, position: int) -> bool:
        return isinstance(self.block.iter_vars[position].dom.extent, tirx.IntImm)

    def _is_whole_tiles(self, position: int) -> bool:
        extent = self.block.iter_vars[position].dom.extent
        return int(tvm.sym.Analyzer().modular_set(extent).coeff) % _TILE == 0

    def _extents(self) -> tuple[int, ...]:
        extents = [iterator.dom.extent for iterator in self.block.iter_vars]
        for variable, extent in zip(self.variables, extents, strict=True):
            if isinstance(extent, tirx.IntImm) and int(extent) < 1:
                raise ScheduleError(
                    f"{self.name} has {extent} iterations of {variable.name}; there is nothing to "
                    "multiply."
                )
        return tuple(placeholder_extent(extent) for extent in extents)

    def _check_tiles(self, *groups: Sequence[int]) -> None:
        """Refuse symbolic extents but those of whole tiles; batches may have any."""
        for position in (i for group in groups for i in group):
            if self._is_number(position):
                continue
            own = next(group for group in groups if position in group)
            first = next(i for i in own if not self._is_unit(i))
            if position != first or not self._is_whole_tiles(position):
                extent = self.block.iter_vars[position].dom.extent
                raise ScheduleError(
                    f"{self.name} has {extent} iterations of {self.variables[position].name}; "
                    "use_tensor_core needs numbers."
                )

    def _summed(self) -> list[int]:
        return [i for i in range(len(self.variables)) if self._is_summed(i)]

    def _is_summed(self, position: int) -> bool:
        return bool(self.block.iter_vars[position].iter_type == tirx.IterVar.CommReduce)

    def _require(self, what: str, found: Sequence[int]) -> None:
        if not found:
            raise ScheduleError(f"{self.name} has no iterator {what}; at least one is needed.")

    def _check_depth(self, summed: Sequence[int], *factors: Sequence[int]) -> None:
        for which, dims in zip(("first", "second"), factors, strict=True):
            self._require(f"k (summed, in its {which} factor)", [i for i in summed if i in dims])
            for missing in (i for i in summed if i not in dims and not self._is_unit(i)):
                raise ScheduleError(
                    f"{self.name} does not index its {which} factor by "
                    f"{self.variables[missing].name}; both must have the summed iterators."
                )

    def _check_batch(self, batch: Sequence[int], *buffers: Sequence[int]) -> None:
        for one in batch:
            if not self._is_unit(one) and not all(one in dims for dims in buffers):
                raise ScheduleError(
                    f"{self.name} indexes not two of its factors and result by "
                    f"{self.variables[one].name}; only an iterator of extent 1 may be so."
                )

    def _is_unit(self, position: int) -> bool:
        return placeholder_extent(self.block.iter_vars[position].dom.extent) == 1

    def _last(self, dims: Sequence[int]) -> int:
        """The iterator whose neighbours lie nearest to each other; of extent 1 if all are."""
        return next((i for i in reversed(dims) if not self._is_unit(i)), dims[-1])

    def _ordered(self, group: Sequence[int], *buffers: Sequence[int]) -> tuple[int, ...]:
        """Order iterators as the first buffer that ends with one of them has them."""
        ending = (dims for dims in buffers if self._last(dims) in group)
        dims = next(ending, buffers[0])
        listed = [*(i for i in group if i not in dims), *(i for i in dims if i in group)]
        spatial = [i for i in listed if not self._is_summed(i)]
        if len(spatial) < 2:
            return tuple(listed)
        return tuple(i for i in spatial if not self._is_unit(i)) or (spatial[-1],)

    def _operand(
        self, load: Any, dims: Sequence[int], summed: Sequence[int], own: Sequence[int]
    ) -> Operand:
        regions = [region.source for region in self.block.reads]
        index = next(i for i, one in enumerate(regions) if one.same_as(load.source))
        # A row of one element is one all the same: padded to a tile, it is no run along K.
        last = next((i for i in reversed(dims) if i in own or not self._is_unit(i)), dims[-1])
        sums = tuple(
            window_of(self.block, at) for at in load.indices if not iterators_of(self.block, at)
        )
        return Operand(index, load.source, last in summed, tuple(dims), sums)

    def _type(self, left: Any, right: Any) -> str:
        types = [str(one.source.dtype) for one in (left, right)]
        if types[0] != types[1]:
            raise ScheduleError(
                f"{self.name} multiplies {types[0]} by {types[1]}; both must agree."
            )
        return types[0]
