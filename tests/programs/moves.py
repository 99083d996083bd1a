"""Pads, slices and casts whose rows lie askew, and what moving them by vectors takes at least."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from tvm import te, tirx

WARP, SECTOR = 32, 32


@dataclass(frozen=True)
class Move:
    """A move of one array.

    ``body`` gives an element of the result of the placeholder and the indices, ``numpy`` the whole,
    ``flat`` the place in the source of each element of the result, -1 where there is none.
    """

    name: str
    dtype: str
    to: str
    source: tuple[int, ...]
    shape: tuple[int, ...]
    body: Callable[[Any, Sequence[Any]], Any]
    numpy: Callable[[np.ndarray], np.ndarray]
    flat: np.ndarray

    def tensors(self, index: str = "int32") -> list[te.Tensor]:
        """As a te program."""
        source, shape = ([tirx.IntImm(index, n) for n in s] for s in (self.source, self.shape))
        held = te.placeholder(source, self.dtype, name="A")
        return [held, te.compute(shape, lambda *i: self.body(held, i), name="B")]

    def array(self) -> np.ndarray:
        """Values of which no two neighbours are equal."""
        return (np.arange(prod(self.source)) % 113 - 56).astype(self.dtype).reshape(self.source)


def sliced(
    source: tuple[int, ...],
    starts: tuple[int, ...],
    shape: tuple[int, ...],
    dtype: str,
    to: str | None = None,
) -> Move:
    """Cut out a box, and perhaps cast it."""
    box = tuple(slice(s, s + n) for s, n in zip(starts, shape, strict=True))

    def body(held: Any, at: Sequence[Any]) -> Any:
        value = held[tuple(i + s for i, s in zip(at, starts, strict=True))]
        return value.astype(to) if to else value

    return Move(
        f"slice-{'x'.join(map(str, shape))}-at-{'x'.join(map(str, starts))}-{dtype}-{to or dtype}",
        dtype,
        to or dtype,
        source,
        shape,
        body,
        lambda a: a[box].astype(to or dtype),
        np.arange(prod(source)).reshape(source)[box],
    )


def padded(
    source: tuple[int, ...],
    before: tuple[int, ...],
    after: tuple[int, ...],
    dtype: str,
    to: str | None = None,
    value: float = 0,
) -> Move:
    """Put a border around, and perhaps cast."""
    widths = list(zip(before, after, strict=True))
    shape = tuple(n + b + a for n, (b, a) in zip(source, widths, strict=True))

    def body(held: Any, at: Sequence[Any]) -> Any:
        inside = [
            part for i, b, n in zip(at, before, source, strict=True) for part in (i >= b, i < n + b)
        ]
        moved = held[tuple(i - b for i, b in zip(at, before, strict=True))]
        moved = moved.astype(to) if to else moved
        return tirx.if_then_else(tirx.all(*inside), moved, tirx.const(value, to or dtype))

    return Move(
        f"pad-{'x'.join(map(str, source))}-by-{'x'.join(map(str, before))}-{dtype}-{to or dtype}",
        dtype,
        to or dtype,
        source,
        shape,
        body,
        lambda a: np.pad(a.astype(to or dtype), widths, constant_values=value),
        np.pad(np.arange(prod(source)).reshape(source), widths, constant_values=-1),
    )


def selected(shape: tuple[int, ...], columns: tuple[int, int], dtype: str) -> Move:
    """Keep the columns from one to before another, and have 0 elsewhere."""
    first, last = columns
    held = (np.arange(shape[-1]) >= first) & (np.arange(shape[-1]) < last)

    def body(source: Any, at: Sequence[Any]) -> Any:
        inside = tirx.all(at[-1] >= first, at[-1] + (shape[-1] - last) < shape[-1])
        return tirx.Select(inside, source[tuple(at)], tirx.const(0, dtype))

    return Move(
        f"select-{'x'.join(map(str, shape))}-of-{first}-to-{last}-{dtype}",
        dtype,
        dtype,
        shape,
        shape,
        body,
        lambda a: np.where(held, a, 0).astype(dtype),
        np.where(held, np.arange(prod(shape)).reshape(shape), -1),
    )


def least(move: Move, vector_bytes: int = 16) -> dict[str, tuple[int, int]]:
    """Requests and sectors of each side, if lanes take vector after vector of the result.

    Every lane gets the aligned vectors of the source in which its elements lie: the first of its
    first row by a request of all lanes, its second from the lane to the right, which has just
    loaded it, or by a request of its own if that lane is in another warp or row; those of a second
    row by up to two more. Nothing is requested that no lane of the warp needs.
    """
    size, to = (np.dtype(t).itemsize for t in (move.dtype, move.to))
    vector = vector_bytes // max(size, to)
    flat, columns = move.flat.reshape(-1), move.shape[-1]
    requests = sectors = 0
    for start in range(0, len(flat), vector * WARP):
        lanes = [_Lane(flat, e, vector, columns) for e in range(start, len(flat), vector)[:WARP]]
        for wanted in _rounds(lanes):
            for one in _parts(wanted, vector, prod(move.source)):
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
