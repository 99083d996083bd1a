"""``sch.swizzle``: lay a shared buffer out so that no access of it meets a bank twice."""

from __future__ import annotations

from typing import Any

from ...errors import ScheduleError
from ...ir.annotations import SWIZZLE
from ...layout.base import Layout
from ...layout.linear import LinearLayout
from ...transform.shared_memory.swizzle_modes import mode_text
from ...transform.shared_memory.swizzle_shared import swizzles_of
from ..handles import annotate, find_block, written_buffer

SwizzleMode = str | int | tuple[int, ...] | Layout | LinearLayout


def swizzle(sch: Any, block: Any, buffer_index: int = 0, mode: SwizzleMode = "auto") -> None:
    """Lay out a shared buffer that a block writes by a swizzle, or by padding.

    Called ``swizzled_shared`` and ``nvmma_shared`` in Triton, ``Swizzle<B, M, S>`` in CUTLASS.
    Every access of the buffer is rewritten when the program is lowered; whether the mode suits the
    tile's shape is known, and checked, only then. Call it after ``sch.tensorize`` of the block or
    around it, which drops the annotation without a word. docs/swizzle.md has pictures.

    Parameters
    ----------
    block : SBlockRV or str
        A block that writes the buffer, usually one that ``cache_read`` made.
    buffer_index : int
        Which of the buffers that the block writes.
    mode : str, int, tuple of int, Layout or LinearLayout
        ``"auto"``, the cheapest of all by count; ``"none"``, plain rows; ``"xor"`` and ``"pad"``,
        the cheapest XOR swizzle and the cheapest padding; 32, 64 or 128, the byte swizzles of TMA
        and ``wgmma``; ``(vec, per_phase, max_phase)``, Triton's swizzle; ``"pad(factor, offset)"``,
        as ``storage_align`` does; a :class:`.SwizzledSharedLayout`, :class:`.NVMMASharedLayout`,
        or a linear layout from offsets to the whole buffer.
    """
    block = find_block(sch, block, "swizzle")
    site = sch.get(block)
    buffer = written_buffer(site, buffer_index)
    if not buffer.scope().startswith("shared"):
        raise ScheduleError(
            f"Buffer {buffer.name} of block {site.name_hint} is in {buffer.scope()} memory; only "
            "shared memory has banks."
        )
    _check_alone(site, buffer_index, str(buffer.name))
    text = mode_text(mode)
    modes = {**swizzles_of(site), str(buffer.name): text}
    pairs = [part for pair in modes.items() for part in pair]
    annotate(sch, block, SWIZZLE, text if len(site.writes) == 1 else pairs)


def _check_alone(site: Any, buffer_index: int, name: str) -> None:
    for entry in site.annotations.get("buffer_dim_align", None) or ():
        if int(entry[0]) == buffer_index:
            raise ScheduleError(
                f"Buffer {name} of block {site.name_hint} is padded by storage_align; a buffer is "
                "either padded or swizzled."
            )
