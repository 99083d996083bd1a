"""What no rule but those for products takes: products of several rows and columns."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import tirx

from ..errors import ScheduleError
from ..ir.evaluate import placeholder_extent
from ..ir.queries import loads_in, uses
from ..tune.space.functions import blocks_of
from ..tune.space.off_tensor_cores import is_product


def refuse_matrices(func: tirx.PrimFunc) -> None:
    """Raise ScheduleError for a product of several rows, columns and terms, also of windows.

    As a sum it would read each element of an operand once for each row, or column, of the other.
    """
    for _, block in blocks_of(func):
        if not is_product(block):
            continue
        m, n = _sides(block)
        if min(m, n) > 1 and _terms(block) > 1:
            raise ScheduleError(
                f"Block {block.name_hint} multiplies {m} rows by {n} columns; as a sum it would "
                "read its operands again and again."
            )


def _terms(block: Any) -> int:
    summed = (one for one in block.iter_vars if one.iter_type == tirx.IterVar.CommReduce)
    return prod(placeholder_extent(one.dom.extent) for one in summed)


def _sides(block: Any) -> list[int]:
    """How many results share an element of either factor, as if symbolic sizes were large."""
    store = block.body
    factors = [one for one in loads_in(store.value) if not one.source.same_as(store.buffer)]
    spatial = [one for one in block.iter_vars if one.iter_type == tirx.IterVar.DataPar]

    def without(factor: Any) -> int:
        apart = (one for one in spatial if not any(uses(at, one.var) for at in factor.indices))
        return prod(placeholder_extent(one.dom.extent) for one in apart)

    return [without(factor) for factor in reversed(factors)]
