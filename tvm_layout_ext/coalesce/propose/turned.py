"""Tiles of rows that begin inside of vectors, by aligned vectors on both sides."""

from __future__ import annotations

from typing import Any

from ...analysis.nest import element_bytes
from ...gpu.hardware import MAX_ACCESS_BYTES, STATIC_SHARED_BYTES
from ...ir.annotations import TURNED
from ...ir.block_bindings import iter_values
from ..shifted.legal import check_parameters
from ..store_policy import keep_stores
from ..strategy import Strategy
from ..subject import Subject
from ..turned.move import goes_through_all, read_turn, why_not
from ..turned.plan import TurnedTile, default_plan

#: Bytes that a row of the result must have that ends inside of vectors, two of which are stored
#: element by element: 301x501x701 bytes by (1, 2, 0) took an H100 261 us so, and 160 without.
_CUT_BYTES = 1024


def turned(subject: Subject) -> list[Strategy]:
    """Propose a tile whose rows lie as far inside of vectors as they do in memory.

    ::

        for j, i in T.grid(15003, 10001):    own = A[row of the tile, from a vector on]
            B[j, i] = A[i, j]                tile[column * pitch + shift // 8 * 8 :][:8] = own
                                             B[j, multiple of 8 : ... + 8] = a column of tile

    Raises ScheduleError if buffers are no parameters.
    """
    request = subject.request
    if subject.kernel is not None or subject.is_reduction or subject.nest.is_guarded:
        return []
    if request.stage == "none" or request.vector_bytes != MAX_ACCESS_BYTES:
        return []
    turn = read_turn(subject.nest.block)
    if turn is None or why_not(turn):
        return []
    if turn.cuts_vectors and turn.column.extent * element_bytes(turn.target) < _CUT_BYTES:
        return []
    loops = [(loop.var, loop.extent) for loop in subject.nest.loops]
    if not goes_through_all(subject.nest.block, iter_values(subject.sch, subject.block), loops):
        return []
    check_parameters(subject.sch, subject.block, (turn.source, turn.target))
    tile = TurnedTile(turn, default_plan(turn, request.num_threads))
    if tile.shared_bytes > STATIC_SHARED_BYTES:
        return []

    def apply(sch: Any, block: Any) -> str:
        sch.annotate(block, TURNED, list(tile.plan.numbers()))
        return f"{tile}{keep_stores(sch, block, block, MAX_ACCESS_BYTES)}"

    return [Strategy("staged", apply, subject.isolated)]
