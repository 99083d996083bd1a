"""``ldmatrix`` and ``stmatrix``: 8x8 matrices of 16-bit elements between shared memory and lanes.

Lane ``8 * i + r`` of a warp gives the address of row ``r`` of matrix ``i``, 16 bytes. Lane ``4 * r
+ t`` holds elements ``2*t`` and ``2*t + 1`` of row ``r`` of each matrix in one register, with
``.trans`` those of column ``r`` (PTX ISA, ``ldmatrix``). The race detector sees the lane that gives
the address. Each matrix is one phase, whose wavefronts are the most rows that need one bank.

``.sync.aligned`` demands that whole warps execute an instruction.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...gpu import hardware
from ..findings import TORN
from ..memory.access import AccessInstruction
from ..memory.registers import Registers, read_all, write_all
from ..model.code import Run, mask_and
from ..model.values import one_or_all, retyped, retyped_poison
from ..report import Site

_WARP = hardware.WARP_SIZE
_ROWS = 8
_HALF = np.dtype(np.uint16)


def torn_lanes(batch: Any, m: Any, site: Site, what: str) -> Any:
    """Threads of a mask whose warp is not all there, after a report; None if there are none."""
    mask = batch.mask(m)
    if mask is None:
        return None
    warps = mask.reshape(-1, _WARP)
    torn = warps.any(axis=1) & ~warps.all(axis=1)
    if not torn.any():
        return None
    start = int(np.argmax(torn)) * _WARP
    lane = start + int(np.argmax(mask[start : start + _WARP]))
    message = (
        f"{int(mask[start : start + _WARP].sum())} of the {_WARP} threads of a warp, among them "
        f"{batch.thread_name(lane)}, execute {what} at line {site.line}; its result is undefined "
        "unless all threads of a warp execute it together."
    )
    findings, cases = batch.launch.findings, int(torn.sum())
    findings.by_thread("divergent", (site,), message, batch, lane, key=what, cases=cases)
    return mask & np.repeat(torn, _WARP)


def with_torn(codes: Any, torn: Any, rows: int) -> Any:
    """Poison ``[rows, threads]`` with what torn warps hold poisoned."""
    if torn is None:
        return codes
    own = np.where(torn, TORN, 0)
    return np.broadcast_to(own, (rows, len(own))) if codes is None else np.maximum(codes, own)


def _to_lanes(rows: Any, matrices: int, transpose: bool) -> Any:
    """Register elements, ``[2 * matrices, threads]``, of rows ``[8, threads]``."""
    whole = rows.reshape(_ROWS, -1, 4, _ROWS)[:, :, :matrices]
    # Elements are now [column, warp, matrix, row].
    outer, inner = (0, 3) if transpose else (3, 0)
    parts = whole.transpose(1, 2, outer, inner).reshape(-1, matrices, _ROWS, 4, 2)
    return parts.transpose(1, 4, 0, 2, 3).reshape(2 * matrices, -1)


def _to_rows(elements: Any, matrices: int, transpose: bool) -> Any:
    """The inverse of `_to_lanes`; lanes that give no address have rows of zeros."""
    parts = elements.reshape(matrices, 2, -1, _ROWS, 4).transpose(2, 0, 3, 4, 1)
    whole = parts.reshape(-1, matrices, _ROWS, _ROWS)
    order = (2, 0, 1, 3) if transpose else (3, 0, 1, 2)
    rows = np.zeros((_ROWS, len(whole), 4, _ROWS), elements.dtype)
    rows[:, :, :matrices] = whole.transpose(order)
    return rows.reshape(_ROWS, -1)


def _addressing(batch: Any, m: Any, matrices: int) -> Any:
    mask = batch.mask(m)
    if matrices * _ROWS == _WARP:
        return mask
    key = (-matrices, id(mask))
    known = batch.masks.get(key)
    if known is not None and known[0] is mask:
        return known[1]
    chosen = mask_and(mask, batch.lane % _WARP < matrices * _ROWS)
    batch.masks[key] = mask, chosen, None
    return chosen


def load_matrices(
    access: AccessInstruction, registers: list[Registers], matrices: int, transpose: bool
) -> Run:
    """Compile ``ldmatrix``."""

    def run(s: Any, m: Any) -> None:
        batch = s.batch
        value, poison = access.load(s, _addressing(batch, m, matrices))
        rows = retyped(np.broadcast_to(value, (access.lanes, batch.size)), _HALF)
        codes = None
        if poison is not None:
            spread = np.broadcast_to(poison, (access.lanes, batch.size))
            codes = _to_lanes(retyped_poison(spread, _ROWS), matrices, transpose)
        codes = with_torn(codes, torn_lanes(batch, m, access.site, "ldmatrix"), 2 * matrices)
        write_all(registers, s, m, _to_lanes(rows, matrices, transpose), codes)

    return run


def store_matrices(
    access: AccessInstruction, registers: list[Registers], matrices: int, transpose: bool
) -> Run:
    """Compile ``stmatrix``; parameters as of :func:`load_matrices`, but registers are read."""
    dtype = access.place.dtype

    def run(s: Any, m: Any) -> None:
        batch = s.batch
        elements, codes = read_all(registers, s, m, _HALF)
        codes = with_torn(codes, torn_lanes(batch, m, access.site, "stmatrix"), 2 * matrices)
        rows = retyped(_to_rows(elements, matrices, transpose), dtype)
        if codes is not None:
            codes = retyped_poison(_to_rows(codes, matrices, transpose), len(rows))
        chosen = _addressing(batch, m, matrices)
        if chosen is None or chosen.any():
            access.store(s, chosen, *one_or_all(rows, codes))

    return run
