"""Write sums into shared memory as the rows of their transpose, which TMA stores by boxes.

Rows of ``wgmma`` are then columns of the result: 64 of them are a row of 128 bytes of a chunk, and
each column of sums is a row of the chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tvm.script import tirx as T

from ...gpu.hardware import WARP_SIZE
from ...gpu.warpgroups import PANEL_BYTES, WARPGROUP_THREADS
from ...intrin import asynchronous
from ...intrin.copies import ROWS, packed
from .pieces import column_of, row_of
from .roles import Parts, Tile

#: Bytes of a row of a matrix, which the swizzle keeps together.
_VECTOR_BYTES = 16
#: Matrices that a group of eight columns of a warp's sums is: their 16 rows.
_HALVES = 2


def turned_rows(
    parts: Parts,
    at: Any,
    corner: Tile,
    which: tuple[int, int],
    sums: Any,
    value: Callable[..., Any],
) -> list[Any]:
    """Write a thread's results into swizzled rows, 16 of a warp's by 16 at a time.

    ``stmatrix.trans`` stores eight rows of 16 bytes for each 8 x 8 sums. These rows follow each
    other in the swizzle's pattern, so they meet no bank twice. The chunk begins at byte ``at``;
    ``value`` gives the result at a place, from the sum that a function gives it.
    """
    plan = parts.plan
    one, (piece, start) = plan.kernel.instruction, which
    first = piece * (one.shape[1] // 2) + start // ROWS * 4

    def result(group: int, half: int, v: int) -> Any:
        row = corner.row + row_of(parts.thread, half)
        column = corner.column + group * ROWS + column_of(parts.thread, v)
        own = asynchronous.sum_at(one, sums, first + group * 4 + half * 2 + v)
        return value(parts, corner, (row, column), lambda _: own)

    def word(group: int, half: int) -> Any:
        return packed(*map(partial(result, group, half), range(2)))

    every = range(plan.chunk_columns // ROWS)
    made = []
    for group in every[::2]:
        words = [word(g, half) for g in every[group : group + 2] for half in range(_HALVES)]
        place = at + group * ROWS * PANEL_BYTES + _row_of_lane(parts.thread, len(words))
        pointer = parts.arena.access_ptr("w", offset=place)
        made.append(asynchronous.store_turned(pointer, words))
    return made


def _row_of_lane(thread: Any, matrices: int) -> Any:
    """The byte where a lane's row begins: row ``lane % 8`` of matrix ``lane // 8``."""
    lane, warp = thread % WARP_SIZE, thread % WARPGROUP_THREADS // WARP_SIZE
    row = lane % ROWS
    below = lane // ROWS % matrices // _HALVES * ROWS
    vector = warp * _HALVES + lane // ROWS % _HALVES
    return (below + row) * PANEL_BYTES + T.bitwise_xor(vector, row) * _VECTOR_BYTES
