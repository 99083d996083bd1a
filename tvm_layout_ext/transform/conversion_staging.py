"""A rule for conversions whose result only goes to shared memory: it is stored unconverted."""

from __future__ import annotations

from ..layout import Movement, movement
from .conversion_banks import has_plain_rows, least_wavefronts, row_wavefronts
from .conversion_graph import Graph, Op
from .conversion_rules import Conversion

__all__ = ["fold_into_staging"]


def fold_into_staging(graph: Graph, one: Conversion) -> str:
    """A conversion that is staged in shared memory: its source is, which whoever loads it turns.

    Memory takes a tile in any layout, so a tile that ``ldmatrix`` loads for a tensor core makes one
    round trip, not another one for the conversion before. Swizzled and padded buffers look at all
    of their accesses; into plain rows the source must not take more wavefronts than conversion and
    store do.
    """
    made, copy = graph.definition(one.source), graph.definition(one.target)
    if not one.is_plain or made is None or copy is None:
        return ""
    stores = [op for op in graph.users(one.target) if _stages(op) and made.dominates(op)]
    folded = [op for op in stores if not _crowds(graph, op, one)]
    for op in folded:
        graph.swap(op, one.target, one.source)
    names = ", ".join(sorted({str(op.nest.store.buffer.name) for op in folded}))
    return f"{names} takes {one.source.name} as it lies, without a conversion" if folded else ""


def _stages(op: Op) -> bool:
    """Whether a nest stores elements of one fragment to shared memory."""
    is_shared = str(op.nest.store.buffer.scope()).startswith("shared")
    is_read = len(op.reads) == 1 and op.reads[0][1] is not None
    return op.target is None and op.tile is not None and is_shared and is_read


def _crowds(graph: Graph, op: Op, one: Conversion) -> bool:
    """Whether storing the source meets more bank conflicts than the conversion costs wavefronts."""
    store = op.nest.store
    if not has_plain_rows(graph, store.buffer):
        return False
    source, target, bits = one.source.layout, one.target.layout, one.source.bits
    if not _in_order(op):
        return True
    before = row_wavefronts(target, bits)
    if movement(source, target) is Movement.SHARED:
        before += least_wavefronts(source, bits) + least_wavefronts(target, bits)
    return row_wavefronts(source, bits) > before


def _in_order(op: Op) -> bool:
    """Whether a nest stores the elements of its tile at the indices that they have there."""
    indices, coordinates = op.walk.store.indices, op.walk.coordinates
    pairs = zip(indices, coordinates, strict=False)
    return len(indices) == len(coordinates) and all(a.same_as(b) for a, b in pairs)
