"""``sch.set_fragment_layout``: spread a buffer in registers over threads by a layout."""

from __future__ import annotations

from typing import Any

from ...errors import LayoutError, ScheduleError
from ...ir.annotations import FRAGMENT
from ...layout import Layout
from ...transform.fragments.fragment import distributed_layout
from ..handles import find_block


def set_fragment_layout(sch: Any, block: Any, buffer_index: int, layout: Layout | str) -> None:
    """Make a ``local`` buffer a register tile of the whole block, one part a thread.

    Triton gives every tensor such a layout; TVM's own tensor intrinsics fix it for tensor cores.
    The annotation is traced; pass ``LowerFragment`` spreads the tile when it lowers. A block that
    copies one fragment to another of a different layout becomes the conversion between them.

    ::

        # a tile of 64x64 on 4 warps, 4 neighbours a thread
        tile = sch.cache_read(block, 0, "local")
        sch.compute_at(tile, block_loop)
        sch.set_fragment_layout(tile, 0, "Blocked([1, 4], [4, 8], [4, 1], [1, 0])")

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule; this function is also its method ``set_fragment_layout``.
    block : SBlockRV or str
        A block that writes the buffer.
    buffer_index : int
        Which of the buffers that the block writes.
    layout : Layout or str
        A distributed layout or its text. The tile is what a thread block needs of the buffer, so
        its shape is known, and checked, only when the program is lowered.

    Raises
    ------
    ScheduleError
        If the block writes no such buffer, or the buffer is not ``local``.
    LayoutError
        If the layout is none of registers, or has another number of dims.
    """
    block = find_block(sch, block, "set_fragment_layout")
    writes = sch.get(block).writes
    name = str(sch.get(block).name_hint)
    if not isinstance(buffer_index, int) or isinstance(buffer_index, bool):
        raise ScheduleError(f"buffer_index is {buffer_index!r}; it must be an int.")
    if not 0 <= buffer_index < len(writes):
        raise ScheduleError(
            f"Block {name} writes {len(writes)} buffers, so buffer_index {buffer_index} names none."
        )
    buffer = writes[buffer_index].source
    if buffer.scope() != "local":
        raise ScheduleError(
            f"Buffer {buffer.name} of block {name} is in {buffer.scope()} memory; only a local "
            "buffer lies in registers."
        )
    _annotate(sch, block, str(buffer.name), _text(layout, buffer))


def _text(layout: Any, buffer: Any) -> str:
    if not isinstance(layout, (Layout, str)):
        raise LayoutError(f"The layout is {layout!r}; it must be a layout or its text.")
    parsed = distributed_layout(layout if isinstance(layout, str) else repr(layout))
    if parsed.rank != len(buffer.shape):
        raise LayoutError(
            f"{parsed} lays out {parsed.rank} dims, but buffer {buffer.name} has "
            f"{len(buffer.shape)}."
        )
    return repr(parsed)


def _annotate(sch: Any, block: Any, name: str, text: str) -> None:
    """Add to what other buffers of the block already have."""
    before = sch.get(block).annotations.get(FRAGMENT, None)
    texts = [] if before is None else list(map(str, before))
    layouts = dict(zip(texts[::2], texts[1::2], strict=True)) | {name: text}
    if before is not None:
        sch.unannotate(block, FRAGMENT)
    sch.annotate(block, FRAGMENT, [text for pair in layouts.items() for text in pair])
