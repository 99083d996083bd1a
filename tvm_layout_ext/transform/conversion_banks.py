"""Whether tiles of shared memory can be loaded in another layout without crowding its banks."""

from __future__ import annotations

from typing import Any

from ..gpu.hardware import BANK_BYTES, NUM_BANKS, WARP_SIZE
from ..layout import LinearLayout, Movement, SwizzledSharedLayout, movement
from ..layout.banks import bank_conflicts, vector_width
from .conversion_graph import Graph, Op, Value, memory_loads
from .conversion_slice import Slice
from .swizzle_shared import SWIZZLE

__all__ = ["crowding", "has_plain_rows", "least_wavefronts", "reads_shared", "row_wavefronts"]

_ROW_BITS = 8 * NUM_BANKS * BANK_BYTES


def row_wavefronts(layout: LinearLayout, bits: int) -> int:
    """Count the wavefronts of loading a tile from plain rows of shared memory.

    Examples
    --------
    >>> from tvm_layout_ext.layout import BlockedLayout
    >>> rows = BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0]).to_linear([64, 64])
    >>> columns = BlockedLayout([4, 1], [8, 4], [1, 4], [0, 1]).to_linear([64, 64])
    >>> row_wavefronts(rows, 32), row_wavefronts(columns, 32)
    (128, 1024)
    """
    shape = list(layout.out_sizes.values())
    order = list(reversed(range(len(shape))))
    plain = SwizzledSharedLayout(1, 1, 1, order).to_linear(shape)
    width = vector_width(layout, plain, bits)
    requests = layout.in_sizes["warp"] * layout.in_sizes["register"] // width
    phases = max(1, WARP_SIZE * width * bits // _ROW_BITS)
    return requests * phases * (1 + bank_conflicts(layout, plain, bits))


def least_wavefronts(layout: LinearLayout, bits: int) -> int:
    """Count the wavefronts of loading or storing a tile without bank conflicts."""
    threads = WARP_SIZE * layout.in_sizes["warp"]
    return max(1, threads * layout.in_sizes["register"] * bits // _ROW_BITS)


def reads_shared(graph: Graph, found: Slice) -> bool:
    """Whether values of a slice come from shared memory."""
    return any(_shared_loads(op) for _, op in found.ordered(graph))


def crowding(graph: Graph, found: Slice, convert: Op, source: Value, wanted: LinearLayout) -> str:
    """Say how many wavefronts more loads in other layouts take, or nothing if they take no more.

    A round trip of ``LowerFragment`` has no conflicts; rows that nothing swizzles may have many.
    Of swizzled or padded buffers it is the swizzle that looks at all of their accesses.
    """
    inside = [convert, *(op for _, op in found.ordered(graph))]
    before = after = 0
    if movement(source.layout, wanted) is Movement.SHARED:
        trip = (source.layout, wanted)
        before = sum(least_wavefronts(layout, source.bits) for layout in trip)
    for value, op in found.ordered(graph):
        plain = [load for load in _shared_loads(op) if has_plain_rows(graph, load.source)]
        stays = any(user not in inside for user in graph.users(value))
        after += len(plain) * row_wavefronts(found.layouts[value], value.bits)
        before += 0 if stays else len(plain) * row_wavefronts(value.layout, value.bits)
    return (
        "" if after <= before else f"shared memory would take {after:,} wavefronts, not {before:,}"
    )


def _shared_loads(op: Op) -> list[Any]:
    return [load for load in memory_loads(op) if load.source.scope().startswith("shared")]


def has_plain_rows(graph: Graph, buffer: Any) -> bool:
    """Whether nothing swizzles or pads a shared buffer."""
    writers = [op for op in graph.ops if op.nest.store.buffer.same_as(buffer)]
    blocks = [op.nest.block for op in writers if op.nest.block is not None]
    swizzled = any(block.annotations.get(SWIZZLE, "none") != "none" for block in blocks)
    return not swizzled and not buffer.ty.strides
