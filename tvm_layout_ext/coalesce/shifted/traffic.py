"""Counting the requests and sectors of a move that goes by shifted vectors, lane by lane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...analysis.nest import element_bytes
from ...gpu.hardware import WARP_SIZE
from ...gpu.sectors import request_sectors
from ...ir.evaluate import evaluate
from ..sectors import Traffic
from .move import Move, pieces

#: Warps that are counted: all up to this number, else as many that are drawn.
_WARPS = 8192
_SEED = 0


@dataclass(frozen=True)
class _Window:
    """The source of each lane's vector, had all of it lain in one row: arrays of (warp, lane).

    Attributes
    ----------
    column : array
        Column of the vector's first element; below 0 where the row starts inside the vector.
    start : array
        Element of the source that belongs there.
    known : array
        Whether the row comes from the source.
    """

    move: Move
    vector: int
    column: np.ndarray
    start: np.ndarray
    known: np.ndarray

    @property
    def shift(self) -> np.ndarray:
        return self.start % self.vector

    def needs(self, high: int) -> np.ndarray:
        """Lanes of which some element lies in the lower or the higher of the two vectors."""
        middle = self.vector - self.shift
        low = self.column + np.where(high, middle, 0)
        end = self.column + np.where(high, self.vector, middle)
        inside = np.maximum(low, self.move.first) < np.minimum(end, self.move.last)
        return self.known & inside


class _Count:
    """Sums up requests for aligned vectors of a buffer, the last of which may not be whole."""

    def __init__(self, vector: int, size: int, elements: int) -> None:
        self.vector, self.size, self.elements = vector, size, elements
        self.requests = self.sectors = self.least = 0

    def add(self, at: np.ndarray, active: np.ndarray) -> None:
        """Add a request a warp: the vectors of the lanes, and which lanes take part."""
        whole = self.elements // self.vector
        self._add(at * self.vector, active & (at < whole), self.vector)
        rest = active & (at == whole)
        for first, count in pieces(self.elements % self.vector) if rest.any() else ():
            self._add(np.full_like(at, whole * self.vector + first), rest, count)

    def _add(self, first: np.ndarray, active: np.ndarray, count: int) -> None:
        sectors, least = request_sectors(first * self.size, active, count * self.size)
        self.requests += int(active.any(axis=1).sum())
        self.sectors += int(sectors.sum())
        self.least += int(least.sum())

    def traffic(self, buffer: Any, kind: str, iterations: int) -> Traffic:
        """What a request does on average."""
        requests = max(1, self.requests)
        served, sectors, least = (n / requests for n in (iterations, self.sectors, self.least))
        width = self.vector * self.size
        return Traffic(str(buffer.name), kind, served, width, sectors, least)


def shifted_traffic(move: Move, vector: int) -> tuple[Traffic, Traffic]:
    """Count what ``ShiftVectors`` makes of a move; lanes take vector after vector.

    Parameters
    ----------
    move : Move
    vector : int
        Elements of a vector.

    Returns
    -------
    tuple of Traffic
        Of the load and of the store.
    """
    warps = -(-move.total // (vector * WARP_SIZE))
    chosen = np.arange(warps, dtype=np.int64)
    if warps > _WARPS:
        chosen = np.random.default_rng(_SEED).integers(0, warps, _WARPS)
    element = (chosen[:, None] * WARP_SIZE + np.arange(WARP_SIZE)[None, :]) * vector
    loads = _Count(vector, element_bytes(move.source), move.source_size)
    stores = _Count(vector, element_bytes(move.target), move.total)
    stores.add(element // vector, element < move.total)
    _count_loads(loads, move, vector, element)
    served = int(np.clip(move.total - element, 0, vector).sum())
    return (
        loads.traffic(move.source, "load", served),
        stores.traffic(move.target, "store", served),
    )


def _window(move: Move, vector: int, element: np.ndarray, inside: int = 0) -> _Window:
    """The window of the row that holds an element of each vector, counted from its first."""
    places = np.unravel_index(np.minimum(element + inside, move.total - 1), move.shape)
    env = dict(zip(move.iterators, places, strict=True))
    start = evaluate(move.offset, env) - inside
    known = np.ones(element.shape, bool)
    for row in move.rows:
        known &= np.broadcast_to(evaluate(row, env) != 0, element.shape)
    return _Window(move, vector, places[-1] - inside, np.asarray(start), known)


def _count_loads(loads: _Count, move: Move, vector: int, element: np.ndarray) -> None:
    """Requests for vectors: own one, the next where no lane has it, those of a second row."""
    live = element < move.total
    own = _window(move, vector, element)
    lane = np.arange(WARP_SIZE)[None, :]
    last = lane == WARP_SIZE - 1
    # Also where only the lane to the left needs it.
    begins = own.column - np.where(lane > 0, own.shift, 0)
    wanted = (own.column + vector - own.shift > move.first) & (begins < move.last)
    loads.add(own.start // vector, live & own.known & wanted)
    alone = last | (own.column + vector >= move.columns)
    loads.add(own.start // vector + 1, live & own.needs(1) & alone)
    other = _window(move, vector, element, vector - 1)
    torn = (element + vector <= move.total) & (own.column + vector > move.columns)
    loads.add(other.start // vector, torn & other.needs(0))
    loads.add(other.start // vector + 1, torn & last & other.needs(1))
