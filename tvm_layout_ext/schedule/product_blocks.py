"""The blocks around a product: operands copied to shared memory, sums kept in registers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.tirx import IndexMap

from ..analysis.contraction import Contraction
from .merge_iterators import merge_result, read_groups


def stage_operands(
    sch: Any,
    block: Any,
    what: Contraction,
    multiples: Sequence[int],
    merged: Sequence[Any] = (),
    scope: str = "shared.dyn",
) -> list[Any]:
    """Copy both operands to shared memory, neighbours in global memory staying neighbours.

    The product's loops are then batch, m, n and k, filled up to ``multiples`` by zeros; ``merged``
    is what ``merge_iterators`` left to inline.
    """
    sch.reorder_block_iter_var(block, what.order)
    loops = sch.get_loops(block)
    sch.reorder(*(loops[position] for position in what.order))
    sides = (what.a, what.b)
    copies = [sch.reindex(block, ("read", side.index)) for side in sides]
    sch.reindex(block, ("write", 0))
    for copy in merged:
        sch.compute_inline(copy)
    if any(size % multiple for size, multiple in zip(what.sizes, multiples, strict=True)):
        copies = _padded(sch, block, copies, [*[1] * len(what.batch), *multiples])
    for copy, side in zip(copies, sides, strict=True):
        if not side.k_major:
            turn(sch, copy)
            dims = len(sch.get(copy).iter_vars)
            sch.reorder_block_iter_var(copy, [*range(dims - 2), dims - 1, dims - 2])
            loops = sch.get_loops(copy)
            sch.reorder(loops[-1], loops[-2])
        sch.set_scope(copy, 0, scope)
    return copies


def _padded(sch: Any, block: Any, copies: Sequence[Any], paddings: Sequence[int]) -> list[Any]:
    """Fill up the operands by zeros as they are copied."""
    sch.pad_einsum(block, list(paddings))
    padded = []
    for copy in copies:
        (consumer,) = sch.get_consumers(copy)
        if sch.get(consumer).same_as(sch.get(block)):
            padded.append(copy)
        else:
            sch.compute_inline(copy)
            padded.append(consumer)
    return padded


def turn(sch: Any, copy: Any) -> None:
    """Swap the last two dims of what a copy fills."""
    own = sch.get(copy).iter_vars
    swapped = IndexMap.from_func(
        lambda *i: (*i[:-2], i[-1], i[-2]), ndim=len(own), index_dtype=str(own[0].var.ty.dtype)
    )
    sch.transform_layout(copy, ("write", 0), swapped)


def read_by(sch: Any, block: Any, copy: Any) -> int:
    """Which of the regions that a block reads a copy fills."""
    buffer = sch.get(copy).writes[0].source
    return next(i for i, r in enumerate(sch.get(block).reads) if r.source.same_as(buffer))


def keep_sums(sch: Any, product: Any, scope: str) -> Any:
    """Keep the sums in registers; whoever reads them element by element reads them there."""
    block = sch.cache_write(product, 0, scope)
    while len(consumers := sch.get_consumers(block)) == 1 and read_groups(
        sch.get(consumers[0]), sch.get(block).writes[0].source
    ):
        sch.compute_inline(block)
        block = consumers[0]
    sums = (one.source for one in sch.get(block).reads if one.source.scope() == scope)
    merge_result(sch, block, next(sums))
    return block
