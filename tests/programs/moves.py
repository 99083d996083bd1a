"""What moving rows that lie askew by aligned vectors takes at least."""

from __future__ import annotations

from math import prod

import numpy as np

from tests.programs.patterns import SECTOR, Pattern

WARP = 32


def least(move: Pattern, vector_bytes: int = 16) -> dict[str, tuple[int, int]]:
    """Requests and sectors of each side, if lanes take vector after vector of the result.

    Every lane gets the aligned vectors of the source in which its elements lie: the first of its
    first row by a request of all lanes, its second from the lane to the right, which has just
    loaded it, or by a request of its own if that lane is in another warp or row; those of a second
    row by up to two more. Nothing is requested that no lane of the warp needs.
    """
    size, to = (np.dtype(t).itemsize for t in (move.dtype, move.stored))
    vector = vector_bytes // max(size, to)
    flat, columns = move.places(0).reshape(-1), move.shape[-1]
    requests = sectors = 0
    for start in range(0, len(flat), vector * WARP):
        lanes = [_Lane(flat, e, vector, columns) for e in range(start, len(flat), vector)[:WARP]]
        for wanted in _rounds(lanes):
            for one in _parts(wanted, vector, prod(move.inputs[0])):
                requests += 1
                sectors += len({at * size // SECTOR for at in one})
    store = _parts(set(range(-(-len(flat) // vector))), vector, len(flat))
    of_warps = [
        {at for at in part if at // (vector * WARP) == warp}
        for part in store
        for warp in range(-(-len(flat) // (vector * WARP)))
    ]
    written = [part for part in of_warps if part]
    return {
        "load": (requests, sectors),
        "store": (len(written), sum(len({a * to // SECTOR for a in p}) for p in written)),
    }


class _Lane:
    """What a lane needs: for each of its rows, the first aligned vector and all that are needed."""

    def __init__(self, flat: np.ndarray, start: int, vector: int, columns: int) -> None:
        self.rows: list[tuple[int, int | None, set[int]]] = []
        elements = range(start, min(start + vector, len(flat)))
        for row in sorted({e // columns for e in elements}):
            own = [e for e in elements if e // columns == row and flat[e] >= 0]
            low = (int(flat[own[0]]) - (own[0] - start)) // vector if own else None
            self.rows.append((row, low, {int(flat[e]) // vector for e in own}))


def _rounds(lanes: list[_Lane]) -> list[set[int]]:
    """Vectors of each request of a warp."""
    first, second, third, fourth = set(), set(), set(), set()
    for number, lane in enumerate(lanes):
        row, low, needed = lane.rows[0]
        if low in needed:
            first.add(low)
        right = lanes[number + 1].rows[0][0] if number + 1 < len(lanes) else None
        for turn, (row, low, needed) in enumerate(lane.rows):
            high = None if low is None else low + 1
            if turn:
                third |= needed & {low}
            if high in needed:
                # The lane to the right loads it for both.
                (first if right == row else fourth if turn else second).add(high)
    return [part for part in (first, second, third, fourth) if part]


def _parts(vectors: set[int], vector: int, size: int) -> list[set[int]]:
    """First elements of the requests for vectors, of which the last may not be whole."""
    whole = size // vector
    parts = [{at * vector for at in vectors if at < whole}]
    first, rest = whole * vector, size % vector
    while whole in vectors and rest:
        count = 1 << (rest.bit_length() - 1)
        parts.append({first})
        first, rest = first + count, rest - count
    return [part for part in parts if part]
