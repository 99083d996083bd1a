"""What a block multiplies: its iterators, its operands, and how they lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from ..errors import ScheduleError
from .conditions import is_zero
from .tir import is_load_of

__all__ = ["Contraction", "Operand", "read_contraction"]


@dataclass(frozen=True)
class Operand:
    """One factor of the product.

    Attributes
    ----------
    index : int
        Which of the regions that the block reads.
    buffer : Buffer
        What is read.
    k_major : bool
        The last index is the summed one, so that neighbours in memory are neighbours along K.
    """

    index: int
    buffer: Any
    k_major: bool


@dataclass(frozen=True)
class Contraction:
    """``C[b..., m, n] += A[b..., m, k] * B[b..., n, k]``, indices in any order.

    Attributes
    ----------
    batch : tuple of int
        Positions, among the iterators of the block, of those in A, B and C.
    rows, columns, depth : int
        Positions of m (in A and C), n (in B and C) and k (summed, in A and B).
    extents : tuple of int
        Of all iterators.
    a, b : Operand
        The factors; A is the one with m, which C has before n.
    operand, sums : str
        Types of both factors and of C.
    """

    batch: tuple[int, ...]
    rows: int
    columns: int
    depth: int
    extents: tuple[int, ...]
    a: Operand
    b: Operand
    operand: str
    sums: str

    @property
    def order(self) -> tuple[int, ...]:
        """Positions of the iterators as batch, m, n, k."""
        return (*self.batch, self.rows, self.columns, self.depth)


def read_contraction(block: Any) -> Contraction:
    """Take a block apart.

    Parameters
    ----------
    block : tvm.s_tir.SBlock
        With its initial value still in it.

    Raises
    ------
    ScheduleError
        If it is no sum of products of two buffers with one m, one n, one k and any number of batch
        iterators; the sentence names the condition that failed.
    """
    return _Reader(block).read()


class _Reader:
    def __init__(self, block: Any) -> None:
        self.block = block
        self.name = f"Block {block.name_hint}"
        self.variables = [iterator.var for iterator in block.iter_vars]

    def read(self) -> Contraction:
        store = self._store()
        left, right = self._factors(store)
        extents = self._extents()
        out = self._positions(store.buffer, store.indices)
        first, second = (self._positions(one.source, one.indices) for one in (left, right))
        summed = self._summed()
        rows = [i for i in out if i in first and i not in second]
        columns = [i for i in out if i in second and i not in first]
        if rows and columns and out.index(rows[0]) > out.index(columns[0]):
            left, right, first, second = right, left, second, first
            rows, columns = columns, rows
        m, n = self._only("m (in one factor and the result)", rows), self._only("n", columns)
        k = self._only("k (summed, in both factors)", summed)
        batch = tuple(i for i in out if i not in (m, n))
        for which, dims in (("first", first), ("second", second)):
            missing = [i for i in (*batch, k) if i not in dims]
            if missing:
                raise ScheduleError(
                    f"{self.name} does not index its {which} factor by "
                    f"{self.variables[missing[0]].name}; both must have batch and summed iterators."
                )
        a, b = self._operand(left, first, k), self._operand(right, second, k)
        sums = str(store.buffer.dtype)
        return Contraction(batch, m, n, k, extents, a, b, self._type(left, right), sums)

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
        value = store.value
        if not isinstance(value, tirx.Add):
            raise ScheduleError(f"{self.name} is no sum C = C + A * B, but {value}.")
        sides = [value.a, value.b]
        rest = [one for one in sides if not is_load_of(one, store.buffer)]
        if len(rest) != 1 or not isinstance(rest[0], tirx.Mul):
            raise ScheduleError(f"{self.name} is no sum C = C + A * B, but {value}.")
        factors = [self._load(one, store.buffer.dtype) for one in (rest[0].a, rest[0].b)]
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

    def _positions(self, buffer: Any, indices: Sequence[Any]) -> list[int]:
        found = []
        for index in indices:
            at = self._iterators(index)
            if not at or any(i in found for i in at):
                raise ScheduleError(
                    f"{self.name} indexes {buffer.name} by {index}; every index must be an "
                    "iterator of its own, or a slice's times its length and one."
                )
            found.extend(at)
        return found

    def _iterators(self, index: Any) -> list[int]:
        """Positions of the iterators of an index: itself, or ``slice * length + one``."""
        if isinstance(index, tirx.Add) and isinstance(index.a, tirx.Mul):
            outer, inner = (self._iterators(one) for one in (index.a.a, index.b))
            factor = index.a.b
            if len(outer) == len(inner) == 1 and isinstance(factor, tirx.IntImm):
                extent = self.block.iter_vars[inner[0]].dom.extent
                if isinstance(extent, tirx.IntImm) and int(extent) == int(factor):
                    return [*outer, *inner]
        return [i for i, v in enumerate(self.variables) if v.same_as(index)]

    def _extents(self) -> tuple[int, ...]:
        extents = [iterator.dom.extent for iterator in self.block.iter_vars]
        for variable, extent in zip(self.variables, extents, strict=True):
            if not isinstance(extent, tirx.IntImm):
                raise ScheduleError(
                    f"{self.name} has {extent} iterations of {variable.name}; "
                    "use_tensor_core needs numbers."
                )
            if int(extent) < 1:
                raise ScheduleError(
                    f"{self.name} has {extent} iterations of {variable.name}; there is nothing to "
                    "multiply."
                )
        return tuple(int(extent) for extent in extents)

    def _summed(self) -> list[int]:
        reduce = tirx.IterVar.CommReduce
        return [i for i, one in enumerate(self.block.iter_vars) if one.iter_type == reduce]

    def _only(self, what: str, found: Sequence[int]) -> int:
        if len(found) != 1:
            names = ", ".join(self.variables[i].name for i in found) or "none"
            raise ScheduleError(
                f"{self.name} has {len(found)} iterators {what}: {names}; exactly one is legal."
            )
        return found[0]

    def _operand(self, load: Any, dims: Sequence[int], k: int) -> Operand:
        regions = [region.source for region in self.block.reads]
        index = next(i for i, one in enumerate(regions) if one.same_as(load.source))
        return Operand(index, load.source, dims[-1] == k)

    def _type(self, left: Any, right: Any) -> str:
        types = [str(one.source.dtype) for one in (left, right)]
        if types[0] != types[1]:
            raise ScheduleError(
                f"{self.name} multiplies {types[0]} by {types[1]}; both must agree."
            )
        return types[0]
