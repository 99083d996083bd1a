"""``sch.set_fragment_layout``: spread a buffer in registers over threads by a layout."""

from __future__ import annotations

from typing import Any

from ...errors import LayoutError, ScheduleError
from ...ir.annotations import FRAGMENT
from ...layout import Layout
from ...transform.fragments.fragment import distributed_layout
from ..handles import annotate, find_block, written_buffer


def set_fragment_layout(sch: Any, block: Any, buffer_index: int, layout: Layout | str) -> None:
    """Make a ``local`` buffer a register tile of the whole block, one part a thread.

    Triton gives every tensor such a layout; TVM's own tensor intrinsics fix it for tensor cores.
    ``LowerFragment`` spreads the tile when the program is lowered. A block that copies one fragment
    to another of a different layout becomes the conversion between them.

    ::

        # a tile of 64x64 on 4 warps, 4 neighbours a thread
        tile = sch.cache_read(block, 0, "local")
        sch.compute_at(tile, block_loop)
        sch.set_fragment_layout(tile, 0, "Blocked([1, 4], [4, 8], [4, 1], [1, 0])")

    Parameters
    ----------
    block : SBlockRV or str
        A block that writes the buffer.
    buffer_index : int
        Which of the buffers that the block writes.
    layout : Layout or str
        A distributed layout or its text. The tile is what a thread block needs of the buffer, so
        its shape is known, and checked, only when the program is lowered.
    """
    block = find_block(sch, block, "set_fragment_layout")
    site = sch.get(block)
    buffer = written_buffer(site, buffer_index)
    if buffer.scope() != "local":
        raise ScheduleError(
            f"Buffer {buffer.name} of block {site.name_hint} is in {buffer.scope()} memory; only a "
            "local buffer lies in registers."
        )
    texts = list(map(str, site.annotations.get(FRAGMENT, None) or ()))
    layouts = dict(zip(texts[::2], texts[1::2], strict=True))
    layouts[str(buffer.name)] = _text(layout, buffer)
    annotate(sch, block, FRAGMENT, [text for pair in layouts.items() for text in pair])


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
