"""A product of some rows, taken apart with all that its function computes from it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx

from ...analysis.contraction import Contraction
from ...ir.queries import is_load_of, loads_in


@dataclass(frozen=True)
class RowsProduct:
    """``out[m, n] = f(sum of x[m, k] * weight[n, k])``, with one ``n`` and one ``k``.

    Attributes
    ----------
    func : PrimFunc
        The function with all inlined that can be.
    block : SBlock
        The product.
    after : tuple of SBlock
        What is computed from it, element by element.
    what : Contraction
    weight : PrimExpr
        An element of the weights, by the iterators of the product; as float32 where it is unpacked.
    written : PrimExpr
        The same as the function has it.
    packed : Buffer
        Where it lies, or what it is unpacked from.
    each : int
        Weights along ``k`` that an element of ``packed`` has.
    x : TensorLoad
        The other factor.
    beside : RowsProduct, optional
        Another product of the same rows and sizes, if what is computed is made of both.
    """

    func: tirx.PrimFunc
    block: Any
    after: tuple[Any, ...]
    what: Contraction
    weight: Any
    written: Any
    packed: Any
    each: int
    x: Any
    n: int
    k: int
    rows: tuple[int, ...]
    beside: RowsProduct | None = None

    @property
    def members(self) -> tuple[RowsProduct, ...]:
        """The product, and the one beside it."""
        return (self,) if self.beside is None else (self, self.beside)

    @property
    def count(self) -> int:
        """How many rows ``x`` has."""
        return prod(self.what.extents[i] for i in self.rows)


def has_numbers(block: Any) -> bool:
    """Whether no extent of a block is symbolic."""
    return all(isinstance(one.dom.extent, tirx.IntImm) for one in block.iter_vars)


def follows(block: Any, product: Any) -> bool:
    """Whether a block computes an element of its own from the same one of a product."""
    store, made = block.body, product.body.buffer
    if not isinstance(store, tirx.BufferStore) or block.init is not None:
        return False
    variables = [one.var for one in block.iter_vars]
    own = [load for load in loads_in(store.value) if is_load_of(load, made)]
    return bool(own) and all(
        len(load.indices) == len(variables)
        and all(
            at.same_as(var) or int(one.dom.extent) == 1
            for at, var, one in zip(load.indices, variables, block.iter_vars, strict=True)
        )
        for load in own
    )
