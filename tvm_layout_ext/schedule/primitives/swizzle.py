"""``sch.swizzle``: lay a shared buffer out so that no access of it meets a bank twice."""

from __future__ import annotations

from typing import Any

from ...errors import ScheduleError
from ...ir.annotations import SWIZZLE
from ...layout.base import Layout
from ...layout.linear import LinearLayout
from ...transform.shared_memory.swizzle_modes import mode_text
from ...transform.shared_memory.swizzle_shared import swizzles_of
from ..handles import find_block

SwizzleMode = str | int | tuple[int, ...] | Layout | LinearLayout


def swizzle(
    sch: Any,
    block: Any,
    buffer_index: int = 0,
    mode: SwizzleMode = "auto",
    *,
    vec: int | None = None,
    per_phase: int | None = None,
    max_phase: int | None = None,
) -> None:
    """Lay out a shared buffer that a block writes by a swizzle, or by padding.

    Called ``swizzled_shared`` and ``nvmma_shared`` in Triton, ``Swizzle<B, M, S>`` in CUTLASS. The
    annotation is traced; pass ``SwizzleSharedMemory`` rewrites every access of the buffer when the
    program is lowered, or refuses with the access. Call it after ``sch.tensorize`` of the block or
    around it, which drops the annotation without a word. docs/swizzle.md has pictures.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule; this function is also its method ``swizzle``.
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
    vec, per_phase, max_phase : int, optional
        For ``"xor"``, all three or none.

    Raises
    ------
    ScheduleError
        If the block writes no such buffer, or ``storage_align`` pads it.
    LayoutError
        If the mode is not legal, or the buffer is not shared. Whether it suits the tile's shape is
        known, and checked, only when the program is lowered.
    """
    block = find_block(sch, block, "swizzle")
    site = sch.get(block)
    buffer = _written(site, buffer_index)
    if not buffer.scope().startswith("shared"):
        raise ScheduleError(
            f"Buffer {buffer.name} of block {site.name_hint} is in {buffer.scope()} memory; only "
            "shared memory has banks."
        )
    _check_alone(site, buffer_index, str(buffer.name))
    _annotate(sch, block, str(buffer.name), mode_text(_mode(mode, vec, per_phase, max_phase)))


def _written(site: Any, buffer_index: Any) -> Any:
    if not isinstance(buffer_index, int) or isinstance(buffer_index, bool):
        raise ScheduleError(f"buffer_index is {buffer_index!r}; it must be an int.")
    if not 0 <= buffer_index < len(site.writes):
        raise ScheduleError(
            f"Block {site.name_hint} writes {len(site.writes)} buffers, so buffer_index "
            f"{buffer_index} names none."
        )
    return site.writes[buffer_index].source


def _check_alone(site: Any, buffer_index: int, name: str) -> None:
    for entry in site.annotations.get("buffer_dim_align", None) or ():
        if int(entry[0]) == buffer_index:
            raise ScheduleError(
                f"Buffer {name} of block {site.name_hint} is padded by storage_align; a buffer is "
                "either padded or swizzled."
            )


def _mode(
    mode: SwizzleMode, vec: int | None, per_phase: int | None, max_phase: int | None
) -> SwizzleMode:
    given = [value for value in (vec, per_phase, max_phase) if value is not None]
    if not given:
        return mode
    if mode != "xor" or len(given) < 3:
        raise ScheduleError(
            f'vec, per_phase and max_phase belong to mode "xor", all three; the mode is {mode!r} '
            f"and {len(given)} are given."
        )
    return tuple(given)


def _annotate(sch: Any, block: Any, name: str, text: str) -> None:
    """Add to what other buffers of the block already have."""
    site = sch.get(block)
    modes = {**swizzles_of(site), name: text}
    if SWIZZLE in site.annotations:
        sch.unannotate(block, SWIZZLE)
    if len(site.writes) == 1:
        sch.annotate(block, SWIZZLE, text)
    else:
        sch.annotate(block, SWIZZLE, [part for pair in modes.items() for part in pair])
